"""The page on the real application: first over a fake engine, then over a real one in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cadence.core.contract.engine_state import EngineState
from cadence.core.errors import EngineDeadError
from tests.server.helpers import RunningApp, ServerProcess
from tests.server.webui_page import Page, needs_chromium

pytestmark = needs_chromium
SCRIPT = "Blue light scatters more than red. Air does it, all day long, in every direction."


def visit(chromium: Any, url: str, name: str) -> Page:
    chromium.get(url)
    page = Page(chromium)
    page.complaints()
    page.forget()
    page.wait(lambda: page.get("#model").text == name, "the model's name")
    return page


def test_a_conversation(chromium: Any, serve: Callable[..., RunningApp]) -> None:
    app = serve({"script": SCRIPT, "delay": 0.005})
    page = visit(chromium, app.url, "fake")
    page.get("#probabilities").click()
    page.say("Why is the sky blue?")
    page.wait_done()
    assert page.answer() == SCRIPT
    tokens = page.all(".answer .token")
    assert "".join(token.get_property("textContent") for token in tokens) == SCRIPT and len(tokens) > 10
    page.point(tokens[0])
    page.wait(lambda: "60.7 %" in page.get("#tip").text, "the card of a token of logprob -0.5")
    assert not page.complaints()


def test_stop_reaches_the_engine(chromium: Any, serve: Callable[..., RunningApp]) -> None:
    app = serve({"delay": 0.01})
    page = visit(chromium, app.url, "fake")
    page.say("Say it again and again")
    page.wait(lambda: page.answer(), "text")
    page.get("#stop").click()
    page.wait_done()
    page.wait(lambda: app.llm.aborted, "the abort")
    app.settle()
    assert not app.state.admission.in_flight


def test_refusals_come_in_the_servers_words(chromium: Any, serve: Callable[..., RunningApp]) -> None:
    app = serve()
    page = visit(chromium, app.url, "fake")
    page.set("temperature", -3)
    page.say("Hello")
    page.wait_done()
    assert "temperature" in page.get(".answer .error").text


def test_a_locked_server_opens_with_a_browsers_password(chromium: Any, serve: Callable[..., RunningApp]) -> None:
    app = serve({"script": "Come in."}, api_key=["sesame"])
    with app.client() as client:
        assert client.get("/").status_code == client.get("/engine/state").status_code == 401
    page = visit(chromium, app.url.replace("//", "//visitor:sesame@"), "fake")
    page.say("Hello")
    page.wait_done()
    assert page.answer() == "Come in."


def test_a_dead_engine_is_said_so(serve: Callable[..., RunningApp], monkeypatch: pytest.MonkeyPatch) -> None:
    app = serve()

    async def dead() -> EngineState:
        raise EngineDeadError("it fell over")

    with app.client() as client:
        assert client.get("/engine/state").status_code == 200
        monkeypatch.setattr(app.llm, "engine_state", dead)
        reply = client.get("/engine/state")
        message = reply.json()["error"]["message"]
        assert reply.status_code == 503 and "not available" in message and "fell over" not in message
        assert client.get("/").status_code == 200
        assert client.post("/engine/state").status_code == 405
        assert client.get("/page/none.js").json()["error"]["message"]


def test_a_real_engine_shows_its_blocks(chromium: Any, tiny_server: ServerProcess) -> None:
    page = visit(chromium, tiny_server.url, "tiny")
    page.wait(lambda: page.get("#engine-note").text, "the engine's state")
    before = page.drawn()
    page.set("max_tokens", 300)
    page.say("Hello there, fill a few blocks for me, and then some more of them.")
    page.wait_done()
    assert not page.all(".answer .error:not([hidden])"), page.get(".answer .error").text
    page.wait(lambda: page.drawn() != before, "the map of blocks changes")
    page.wait(lambda: page.get("#now-step").text.startswith("median"), "step times")
    page.wait(lambda: page.get("#now-first").text, "time to first token")
    with tiny_server.client() as client:
        ends = time.monotonic() + 240
        while (state := client.get("/engine/state").json())["num_running"] and time.monotonic() < ends:
            time.sleep(0.1)
    assert state["generated_tokens"] > 0 and state["blocks"]["held"] == 0 and state["blocks"]["cached"] > 0
    assert state["blocks"]["count"] == sum(state["blocks"]["runs"][1::2])
