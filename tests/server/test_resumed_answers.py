"""Answers go on where an event loop is stuck: each client sees one answer, that of an undisturbed server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.helpers import ServerProcess

pytestmark = pytest.mark.warm

WAIT_S = 240.0
STICKS = ("--max-model-len", "512", "--middleware", "tests.server.sticky.StickyMiddleware", "--event-loop-timeout")
Ask = tuple[str, dict[str, Any]]  # path, body


class Client(threading.Thread):
    """Reads one answer."""

    def __init__(self, server: ServerProcess, ask: Ask, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._server, self._ask, self._headers = server, ask, headers
        self._answer = b""
        self.has_begun = threading.Event()  # some of a stream has come; or it is none
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        path, body = self._ask
        try:
            with (
                self._server.client(timeout=WAIT_S) as client,
                client.stream("POST", path, json=body, headers=self._headers) as response,
            ):
                self._answer = b"%d\n" % response.status_code
                for piece in response.iter_raw():
                    self._answer += piece
                    if self._answer.count(b"data: ") > 4:
                        self.has_begun.set()
        except Exception as error:
            self.error = error
        self.has_begun.set()

    def answer(self) -> Any:
        """Without the second in which it was created, which all parts of it agree on. A slow machine may join what a
        choice says in two events: so its texts are joined here."""
        self.join(WAIT_S)
        assert self.error is None, repr(self.error)
        assert len(set(re.findall(rb'"created":(\d+)', self._answer))) == 1
        status, _, answer = re.sub(rb'"created":\d+,', b"", self._answer).partition(b"\n")
        if not self._ask[1]["stream"]:
            return status, json.loads(answer)
        *events, last, nothing = answer.split(b"\n\n")
        assert (last, nothing) == (b"data: [DONE]", b"")
        return status, _joined([json.loads(event.removeprefix(b"data: ")) for event in events])


def _joined(events: Sequence[dict[str, Any]]) -> Any:
    said: dict[int, list[Any]] = {}  # text and logprobs of each choice
    others = []
    for event in events:
        for choice in event["choices"]:
            mine = said.setdefault(choice["index"], ["", []])
            holder = choice.get("delta", choice)
            mine[0] += holder.pop("text", "") or holder.pop("content", "") or ""
            logprobs = choice.pop("logprobs") or {}
            mine[1] += logprobs.get("content") or zip(*logprobs.values(), strict=True)
        if event not in others:
            others.append(event)
    return said, others


def answers(server: ServerProcess, asks: Sequence[Ask]) -> list[Client]:
    together = {"x-together": str(len(asks))}
    return [Client(server, ask, {"x-request-id": f"a-{i}", **together}) for i, ask in enumerate(asks)]


def completion(number: int, **more: Any) -> Ask:
    body = {"prompt": [5 + number, 6, 7], "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}
    return "/v1/completions", {**body, **more}


def chat(**more: Any) -> Ask:
    messages = [{"role": "user", "content": "hello"}]
    body = {"messages": messages, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}
    return "/v1/chat/completions", {**body, **more}


def check(server: ServerProcess, asks: Sequence[Ask], marker: Path) -> None:
    """The one that sticks is a request like the others, and is not run again."""
    expected = [client.answer() for client in answers(server, asks)]
    streams = sum(body["stream"] for _, body in asks)
    sticks = {"x-sticks": str(marker), "x-streams": str(2 * streams + 1)}  # one JSON answer has a head as well
    sticking = Client(server, completion(9), sticks)
    disturbed = answers(server, asks)
    assert [client.answer() for client in disturbed] == expected
    sticking.join(WAIT_S)
    assert isinstance(sticking.error, httpx.TransportError)
    assert server.output().count("is replaced in its process") == 1
    assert f"going on with {len(asks)} unfinished answers" in server.output()


@pytest.mark.engine
def test_all_answers_go_on(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    usage = {"stream_options": {"include_usage": True}}
    asks = [
        completion(0),
        completion(1, **usage),
        completion(2, n=2, temperature=1),
        completion(3, stop=["nothing"]),
        chat(**usage),
    ]
    asks.append(completion(4, stream=False))
    slow = {"CADENCE_TOY_STEP_S": "0.01"}
    with ServerProcess(tiny_model("llama"), *STICKS, "0.5", engine="toy", environment=slow) as server:
        check(server, asks, tmp_path / "stuck")


@pytest.mark.engine
def test_another_api_process_goes_on(tiny_model: Callable[[str], Path]) -> None:
    """Connections are dealt out in turn: one of two processes has every other."""
    asks = [completion(number, max_tokens=200) for number in range(3)]
    asks += [completion(4, max_tokens=200, n=2, temperature=1), chat(max_tokens=200)]
    stuck = ("--middleware", "tests.server.fake_process.StuckMiddleware", "--event-loop-timeout", "0.5")
    flags, slow = ("--api-server-count", "2", "--max-model-len", "512", *stuck), {"CADENCE_TOY_STEP_S": "0.01"}
    with ServerProcess(tiny_model("llama"), *flags, engine="toy", environment=slow) as server:
        clients = [Client(server, ask, {"x-request-id": f"a-{number}"}) for number, ask in enumerate(asks)]
        assert all(client.has_begun.wait(WAIT_S) for client in clients)
        with server.client(timeout=WAIT_S) as client, pytest.raises(httpx.TransportError):
            client.get("/stuck")
        disturbed = [client.answer() for client in clients]
        again = [Client(server, ask, {"x-request-id": f"a-{number}"}) for number, ask in enumerate(asks)]
        assert disturbed == [client.answer() for client in again]
        assert re.search(r"\d connections of API process \d go on", server.output())


@pytest.mark.engine
@pytest.mark.wide
def test_sampled_answers_and_logprobs_go_on(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """With the real engine. What is asked for together without a seed has one by the order of arrival, so here each
    is asked for with one, and those without are compared in `test_open_requests`."""
    asks = [completion(number, seed=number, temperature=1.0, max_tokens=400) for number in range(4)]
    asks.append(chat(seed=7, temperature=1.0, logprobs=True, top_logprobs=2, max_tokens=300))
    asks.append(completion(4, seed=8, temperature=1.0, logprobs=2, n=2, max_tokens=300))
    asks.append(completion(5, seed=8, temperature=1.0, logprobs=2, n=2, max_tokens=400, stream=False))
    with ServerProcess(tiny_model("llama"), *STICKS, "5") as server:
        check(server, asks, tmp_path / "stuck")
