"""The page's files and its JSON: served closed, self-contained, and small however large the cache is."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from cadence.core.contract.engine_state import CACHED, FIRST_OWNER, FREE, EngineState, EngineStats, RequestView
from cadence.core.draft_stats import NO_DRAFTS
from cadence.core.model.state_spec import StateStats
from cadence.engine.metrics.metric import Counter, Histogram
from cadence.entrypoints.webui import page
from cadence.entrypoints.webui.page import PUBLIC_PAGE_PATHS
from cadence.entrypoints.webui.state_view import MAX_REQUESTS_SHOWN, describe
from tests.server.webui_server import BLOCKS, ScriptedEngine, build

STATIC = Path(page.__file__).parent / "static"
FILES = sorted(STATIC.iterdir())


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(build(ScriptedEngine()))


@pytest.mark.parametrize("path", sorted(PUBLIC_PAGE_PATHS))
def test_every_file_is_served_with_a_strict_policy(client: TestClient, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["img-src"] == "'self' data:", "pictures of a message are kept in the page"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_types_are_those_a_browser_insists_on(client: TestClient) -> None:
    types = {path: client.get(path).headers["content-type"].split(";")[0] for path in PUBLIC_PAGE_PATHS}
    wanted = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", "": "text/html"}
    assert types == {path: wanted[Path(path).suffix] for path in PUBLIC_PAGE_PATHS}


def test_a_known_file_is_not_sent_twice(client: TestClient) -> None:
    tag = client.get("/").headers["etag"]
    again = client.get("/", headers={"If-None-Match": tag})
    assert again.status_code == 304 and not again.content and again.headers["etag"] == tag
    head = client.head("/")
    assert head.status_code == 200 and not head.content


@pytest.mark.parametrize(
    "path", ["/page/page.py", "/page/../page.py", "/page/%2e%2e/page.py", "/page/", "/page/none.js"]
)
def test_nothing_else_can_be_read(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_ask_nobody_else_for_anything(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|wss?://|(?:src|href)=\"//|url\(|@import|data:image", text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_are_small_and_need_no_inline_permission(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") < 400
    if file.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]* src=)|javascript:", text)
    if file.suffix == ".js":
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(.style", text
        )


@pytest.mark.parametrize("name", ["index.html", "docs.html"])
def test_every_field_has_a_label(name: str) -> None:
    html = (STATIC / name).read_text(encoding="utf-8")
    inside = {
        name for label in re.findall(r"<label\b.*?</label>", html, re.S) for name in re.findall(r'id="(\w+)"', label)
    }
    fields = set(re.findall(r'<(?:input|textarea|select)[^>]*?\bid="(\w+)"', html))
    assert fields and fields <= inside | set(re.findall(r'<label for="(\w+)"', html))


def test_scripts_and_page_agree_on_ids() -> None:
    html = "".join(file.read_text(encoding="utf-8") for file in STATIC.glob("*.html"))
    known = set(re.findall(r'\bid="([\w-]+)"', html))
    used = {name for file in STATIC.glob("*.js") for name in re.findall(r'byId\("([\w-]+)"\)', file.read_text("utf-8"))}
    assert used <= known


def test_state_of_an_idle_engine(client: TestClient) -> None:
    reply = client.get("/engine/state")
    assert reply.status_code == 200 and reply.headers["cache-control"] == "no-store"
    body = reply.json()
    assert body["model"] == "scripted" and body["running"] == [] == body["waiting"]
    assert body["blocks"]["runs"] == [CACHED, 40, FREE, BLOCKS - 40]
    assert body["prefix"] == {"queries": 100, "hits": 25} and body["preemptions"] == 3


def test_the_page_needs_no_engine(client: TestClient) -> None:
    """The static part is the same for everybody: nothing of the state is in it."""
    assert client.get("/").text == (STATIC / "index.html").read_text(encoding="utf-8")


def test_describe_counts_and_packs() -> None:
    views = [RequestView(f"r{i}", 10, i, 10 + i, 0) for i in range(300)]
    owners = [FREE, FREE, CACHED, FIRST_OWNER, FIRST_OWNER, FIRST_OWNER + 1, FREE]
    tokens = [Counter("vllm:generation_tokens", {"engine": str(i)}, 5) for i in range(2)]
    first = Histogram("vllm:time_to_first_token_seconds", {}, (1.0,))
    first.observe(0.25)
    stats = EngineStats(drafts=NO_DRAFTS.add([(2, 2), (1, 1)]))
    body = describe(EngineState(views, views[:3], owners, 16, stats), [*tokens, first], "m")
    assert body["drafts"] == {"forwards": 2, "drafted": [2, 1], "accepted": [1, 0]}
    assert body["blocks"] == {
        "count": 7, "size": 16, "free": 3, "cached": 1, "held": 3, "runs": [0, 2, 1, 1, 2, 2, 3, 1, 0, 1],
    }  # fmt: skip
    assert len(body["running"]) == MAX_REQUESTS_SHOWN and body["num_running"] == 300 and body["num_waiting"] == 3
    assert body["generated_tokens"] == 10 and body["first_token"] == {"count": 1, "sum": 0.25}


def test_describe_states_where_layers_keep_some() -> None:
    stats = EngineStats(states=StateStats(rows=8, running=2, slots=5, used=3, saved=4, restored=1, evicted=1))
    assert describe(EngineState(stats=stats), [], "m")["states"] == {
        "rows": 8, "running": 2, "slots": 5, "used": 3, "saved": 4, "restored": 1, "evicted": 1,
    }  # fmt: skip
    assert describe(EngineState(), [], "m")["states"] is None


def test_describe_an_engine_without_blocks() -> None:
    assert describe(EngineState(), [], "m")["blocks"]["runs"] == []


def test_a_large_cache_makes_a_small_answer() -> None:
    owners = [FREE] * 200_000
    owners[1000:1500] = [FIRST_OWNER] * 500
    app = build(ScriptedEngine())

    async def state() -> EngineState:
        return EngineState([RequestView("r", 1, 1, 1, 0)], [], owners, 16)

    app.state.server.llm.engine_state = state
    reply: httpx.Response = TestClient(app).get("/engine/state")
    assert reply.json()["blocks"]["count"] == 200_000 and len(reply.content) < 2000
