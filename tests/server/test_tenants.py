"""Several keys, several tenants: what one made, the other cannot see, use, end, or find out about."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cadence.config.args import EngineArgs
from cadence.config.server.serve_options import ServeOptions
from cadence.core.contract.engine_state import EngineState, RequestView
from cadence.core.contract.response_messages import StoredResponse
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.http.tenants import TENANT, Tenants
from cadence.entrypoints.server.responses.store import ResponseStore
from cadence.entrypoints.webui.state_view import describe, seen_by
from tests.server.helpers import FakeLLM, RunningApp

pytestmark = pytest.mark.warm

Serve = Callable[..., RunningApp]
KEYS = ["key of anna", "key of bert"]
ANNA, BERT = ({"Authorization": f"Bearer {key}"} for key in KEYS)
MESSAGES = [{"role": "user", "content": "to be or not to be"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "to be or not to be", "max_tokens": 3},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses": {"input": "to be or not to be", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, "model": "fake"},
}


class SaltedLLM(FakeLLM):
    """Remembers what prompts were salted with."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.salts: list[str] = []
        self.tenants: list[str] = []

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        self.salts.append(prompt.get("cache_salt", "") if isinstance(prompt, dict) else "")
        processed = await self.inputs.process(request_id, prompt, params, priority=priority)
        self.tenants.append(processed.request.tenant)
        async for output in super().generate(prompt, params, request_id, priority=priority):
            yield output


def ask(client: httpx.Client, path: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    reply = client.post(path, json={**ASKED[path], **more}, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("path", ASKED)
def test_prompts_are_salted_by_tenant(serve: Serve, fake_model: Path, path: str) -> None:
    """On every way to the engine, whatever shape the prompt has; and the request's own salt still counts."""
    llm = SaltedLLM(fake_model)
    app = serve(llm, api_key=KEYS)
    with app.client() as client:
        for headers in (ANNA, BERT, ANNA):
            ask(client, path, headers)
        assert llm.salts[0] == llm.salts[2] != llm.salts[1] and all(llm.salts)
        assert not any(key in salt for key in KEYS for salt in llm.salts)
        first, second, third = llm.tenants
        assert first == third != second and second, "the engine knows whose request it is"
        if path == "/v1/completions":
            ask(client, path, BERT, prompt=[5, 6, 7])
            ask(client, path, BERT, prompt=["one", "two"])
            assert set(llm.salts[3:]) == {llm.salts[1]}
        if path != "/v1/messages":
            for headers in (ANNA, BERT):
                ask(client, path, headers, cache_salt="mine")
            assert len({llm.salts[0], llm.salts[1], *llm.salts[-2:]}) == 4


@pytest.mark.parametrize("options", [{"api_key": KEYS, "share_prefix_cache": True}, {"api_key": KEYS[:1]}])
@pytest.mark.parametrize("path", ASKED)
def test_one_tenant_or_a_shared_cache_needs_no_salt(
    serve: Serve, fake_model: Path, path: str, options: dict[str, Any]
) -> None:
    llm = SaltedLLM(fake_model)
    with serve(llm, **options).client() as client:
        ask(client, path, ANNA)
        if path != "/v1/messages":
            ask(client, path, ANNA, cache_salt="mine")
            assert llm.salts == ["", "mine"]
        else:
            assert llm.salts == [""]


def test_no_two_pairs_of_tenant_and_salt_are_alike() -> None:
    tenants = Tenants(["a", "b", "c"])
    scopes = [{TENANT: tenants.tenant(key)} for key in (b"a", b"b", b"c")]
    own = ["", ":", "a", f"{scopes[0][TENANT]}:", f"{scopes[1][TENANT]}:x", None]
    salts = {tenants.cache_salt(scope, salt) for scope in scopes for salt in own}
    assert len(salts) == len(scopes) * (len(own) - 1)  # None is ""


def test_tenants_are_opaque() -> None:
    first, second = Tenants(["a", "b"]), Tenants(["a", "b"])
    assert first.tenant(b"a") != first.tenant(b"b") and first.tenant(b"a") != second.tenant(b"a")
    assert first.tenant(b"c") is None
    assert Tenants(["a", "a"]).tenant(b"a") == Tenants(["a"]).tenant(b"a") == ""


def test_responses_of_others_are_as_unknown_as_those_of_nobody(serve: Serve) -> None:
    app = serve({"script": "Good day."}, api_key=KEYS)
    with app.client() as client:
        body = {"input": "hello", "max_output_tokens": 20}
        mine = client.post("/v1/responses", json=body, headers=ANNA).json()["id"]
        unknown = "resp_" + "0" * (len(mine) - len("resp_"))
        for method, path, content in (
            ("GET", "/v1/responses/{}", None),
            ("GET", "/v1/responses/{}/input_items", None),
            ("POST", "/v1/responses/{}/cancel", None),
            ("DELETE", "/v1/responses/{}", None),
            ("POST", "/v1/responses", {**body, "previous_response_id": "{}"}),
        ):
            answers = []
            for name in (mine, unknown):
                given = json.loads(json.dumps(content).replace("{}", name))
                reply = client.request(method, path.format(name), json=given, headers=BERT)
                answers.append((reply.status_code, reply.text.replace(name, "ID"), sorted(reply.headers)))
            assert answers[0] == answers[1] and answers[0][0] in (400, 404), answers
        assert client.get(f"/v1/responses/{mine}", headers=ANNA).json()["output"]
        again = client.post("/v1/responses", json={**body, "previous_response_id": mine}, headers=ANNA)
        assert again.status_code == 200
        assert client.delete(f"/v1/responses/{mine}", headers=ANNA).status_code == 200


def test_a_running_response_can_only_be_seen_and_ended_by_its_own(serve: Serve) -> None:
    app = serve({"delay": 0.02, "script": "a long speech " * 20}, api_key=KEYS)
    body = {"input": "hello", "stream": True, "max_output_tokens": 500}
    events: list[dict[str, Any]] = []
    began = threading.Event()

    def stream() -> None:
        with app.client() as client, client.stream("POST", "/v1/responses", json=body, headers=ANNA) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                    began.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert began.wait(240)
    name = events[0]["response"]["id"]
    with app.client() as client:
        for method, path in (("POST", "/cancel"), ("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
            assert client.request(method, f"/v1/responses/{name}{path}", headers=BERT).status_code == 404
        refused = client.post("/v1/responses", json={**body, "previous_response_id": name}, headers=BERT)
        assert refused.status_code == 400 and refused.json()["error"]["reason"] == "previous_response_not_found"
        assert client.get(f"/v1/responses/{name}", headers=ANNA).json()["status"] == "in_progress"
        assert not app.llm.aborted
        assert client.post(f"/v1/responses/{name}/cancel", headers=ANNA).status_code == 200
    thread.join(240)
    assert app.llm.aborted and events[-1]["type"] != "error"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_ids_that_clients_choose_do_not_collide(serve: Serve, path: str) -> None:
    app = serve({"delay": 0.02}, api_key=KEYS)
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    statuses: list[int] = []

    def one(headers: dict[str, str]) -> None:
        with app.client() as client:
            body = {**ASKED[path], limit: 20, "request_id": "same"}
            statuses.append(client.post(path, json=body, headers={**headers, "X-Request-Id": "same"}).status_code)

    threads = [threading.Thread(target=one, args=(headers,)) for headers in (ANNA, BERT) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert statuses == [200] * 8 and len(set(app.llm.started)) == 8


def test_the_engine_state_shows_the_others_as_one(serve: Serve) -> None:
    app = serve({"delay": 0.05}, api_key=KEYS)
    body = {**ASKED["/v1/completions"], "max_tokens": 400, "request_id": "secret-project", "stream": True}
    with app.client() as client, client.stream("POST", "/v1/completions", json=body, headers=ANNA) as reply:
        assert reply.status_code == 200
        seen = {}
        for name, headers in (("anna", ANNA), ("bert", BERT)):
            with app.client() as other:
                seen[name] = other.get("/engine/state", headers=headers).json()
    assert "secret-project" in seen["anna"]["running"][0]["request_id"]
    assert "secret-project" not in json.dumps(seen["bert"])
    assert [view["num_running"] for view in seen.values()] == [1, 1]


def test_block_owners_follow_the_requests_that_are_shown() -> None:
    views = [RequestView(name, 10, 1, 10, 0) for name in ("a1", "b1", "a2", "b2")]
    state = EngineState(running=views, block_owners=[0, 1, 2, 3, 4, 5, 3], block_size=16)
    shown = seen_by(state, lambda name: name.startswith("b"))
    assert [view.request_id for view in shown.running] == ["b1", "b2", "running requests of other keys"]
    assert shown.running[-1].prompt_tokens == 20 and shown.block_owners == [0, 1, 4, 2, 4, 3, 2]
    assert describe(shown, (), "m")["blocks"]["held"] == 5
    assert seen_by(state, lambda name: True) == state


def test_who_stores_most_gives_way_first() -> None:
    store = ResponseStore(max_responses=10, max_bytes=1000)
    store.of("small").keep("mine", StoredResponse(b"x" * 100, b""))
    for number in range(50):
        store.of("large").keep(str(number), StoredResponse(b"x" * 90, b""))
    assert store.of("small").get("mine") is not None
    assert len(store) <= 10 and len(store.of("large")) == 9
    for number in range(50):
        store.of("many").keep(str(number), StoredResponse(b"x", b""))
    assert store.of("small").get("mine") is not None and len(store) == 10


def test_the_prefix_cache_end_to_end(tiny_model: Callable[[str], Path]) -> None:
    """One engine behind two servers: with salts, and with `share_prefix_cache`."""

    async def scenario() -> tuple[list[int], list[int]]:
        model = str(tiny_model("llama"))
        llm = await AsyncLLM.start(EngineArgs(model=model, max_model_len=512, num_gpu_blocks_override=64))
        try:
            apart = await cached_tokens(llm, "apart", share=False)
            return apart, await cached_tokens(llm, "shared", share=True)
        finally:
            await llm.shutdown(drain=False)

    apart, shared = asyncio.run(scenario())
    assert apart[0] == apart[2] == 0 and apart[1] > 0 and apart[3] > 0
    assert shared[0] == 0 and all(cached > 0 for cached in shared[1:])


async def cached_tokens(llm: AsyncLLM, word: str, share: bool) -> list[int]:
    """Of one prompt, asked by Anna, Anna, Bert and Bert, as text and as a chat."""
    options = ServeOptions(api_key=KEYS, share_prefix_cache=share, enable_prompt_tokens_details=True)
    wire = httpx.ASGITransport(create_app(llm, options))  # type: ignore[arg-type]
    body = {"prompt": f"{word} and " * 40, "max_tokens": 1, "temperature": 0}
    found = []
    async with httpx.AsyncClient(transport=wire, base_url="http://server") as client:
        for headers in (ANNA, ANNA, BERT, BERT):
            usage = (await client.post("/v1/completions", json=body, headers=headers)).json()["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
    return found
