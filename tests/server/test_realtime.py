"""/v1/realtime over real sockets: events, live input, limits, keys, and what ends a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import websocket
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.helpers.processes import children_of
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]


SERVER_EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


class Client:
    """An open socket."""

    def __init__(self, server: Any, query: str = "?model=tiny", **options: Any) -> None:
        url = f"{server.url.replace('http', 'ws', 1)}/v1/realtime{query}"
        self.socket = websocket.create_connection(url, timeout=120, **options)

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def next(self) -> dict[str, Any]:
        """Checked by the types of OpenAI's client."""
        event = json.loads(self.socket.recv())
        SERVER_EVENTS.validate_python(event)
        return event

    def until(self, kind: str) -> list[dict[str, Any]]:
        events = [self.next()]
        while events[-1]["type"] != kind:
            events.append(self.next())
        return events

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def test_a_response_is_that_of_a_chat(tiny_server: ServerProcess) -> None:
    with Client(tiny_server) as client:
        assert client.next()["type"] == "session.created"
        client.send("session.update", session={"instructions": "Be brief.", "temperature": 0, "max_output_tokens": 8})
        assert client.next()["session"]["instructions"] == "Be brief."
        client.send("conversation.item.create", item=message("hello"))
        client.until("conversation.item.done")
        client.send("response.create")
        events = client.until("response.done")
    with tiny_server.client() as http:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        body = {"model": "tiny", "messages": messages, "temperature": 0, "max_completion_tokens": 8}
        answer = http.post("/v1/chat/completions", json=body).json()
    assert said(events) == answer["choices"][0]["message"]["content"]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created" and kinds.count("response.done") == 1
    done = events[-1]["response"]
    assert done["usage"]["input_tokens"] == answer["usage"]["prompt_tokens"]
    assert done["usage"]["output_tokens"] == answer["usage"]["completion_tokens"]


def begin(client: Client, *items: str, **settings: Any) -> None:
    """A conversation whose answer is greedy."""
    client.until("session.created")
    client.send("session.update", session={"temperature": 0, **settings})
    client.until("session.updated")
    for text in items:
        client.send("conversation.item.create", item=message(text))
        client.until("conversation.item.done")


def kill_engines(server: ServerProcess) -> None:
    for one in children_of(server.process.pid, "core_process", recursive=True):
        one.kill()


def with_piece(server: ServerProcess, piece: list[int], limit: int, killed: bool) -> list[dict[str, Any]]:
    """The events of a response that got a piece while it was written: again, where it was over before."""
    for _ in range(50):
        with Client(server) as client:
            begin(client, "hello", max_output_tokens=limit)
            client.send("response.create")
            first = client.until("response.output_text.delta")
            client.send("response.input_text.append", token_ids=piece)
            if killed:
                kill_engines(server)
            events = [*first, *client.until("response.done")]
            client.send("response.cancel")  # its error is the last event
            late = client.until("error")[:-1]
            if not late and not any(event["type"] == "error" for event in events):
                return events
    raise AssertionError("no piece came in time")


@pytest.mark.parametrize("killed", [False, True], ids=["", "and its engine is killed"])
def test_a_piece_of_the_prompt_goes_to_a_running_response(tiny_server: ServerProcess, killed: bool) -> None:
    """What follows it is what a fresh request says after the prompt, what was written, and the piece."""
    piece, limit = [40, 41, 42, 43], 60
    events = with_piece(tiny_server, piece, limit, killed)
    usage = events[-1]["response"]["usage"]
    with tiny_server.client() as http:
        prompt = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "add_generation_prompt": True}
        ids = http.post("/tokenize", json=prompt).json()["tokens"]
        assert usage["input_tokens"] == len(ids) + len(piece)

        def fresh(token_ids: list[int], count: int) -> tuple[str, list[int]]:
            given = {"model": "tiny", "prompt": token_ids, "max_tokens": count, "temperature": 0}
            answer = http.post("/v1/completions", json={**given, "return_token_ids": True}).json()["choices"][0]
            return answer["text"], answer["token_ids"]

        def told(written: int) -> tuple[str, int]:
            """The answer whose piece came after so many tokens, and its length."""
            text, tokens = fresh(ids, written)
            more, after = fresh([*ids, *tokens, *piece], limit)
            return text + more, len(tokens) + len(after)

        whole = said(events), usage["output_tokens"]
        assert any(told(written) == whole for written in range(1, limit + 1))


def test_events_that_are_wrong_are_told_and_the_session_goes_on(tiny_server: ServerProcess) -> None:
    wrong = [
        ("{", "event"), ('{"type": 3}', "event"), ('{"type": "nothing"}', "type"), ("[]", "event"),
        ('{"type": "conversation.item.create", "item": {"role": "cook"}}', "item.role"),
        ('{"type": "conversation.item.create", "item": {"content": [{"type": "input_image"}]}}', "item.content"),
        ('{"type": "response.input_text.append", "text": "x"}', "response_id"),
        ('{"type": "response.cancel"}', "response_id"),
        ('{"type": "session.update", "session": {"model": "another"}}', "model"),
        ('{"type": "response.create", "response": {"temperature": -1}}', "temperature"),
    ]  # fmt: skip
    with Client(tiny_server) as client:
        begin(client, "hello")
        for content, param in wrong:
            client.socket.send(content)
            told = client.next()
            assert (told["type"], told["error"]["param"]) == ("error", param), content
        client.send("response.create", event_id="mine", response={"max_output_tokens": 3})
        assert client.until("response.done")[-1]["response"]["status"] in ("incomplete", "completed")


def test_a_response_is_cancelled_and_there_is_one_at_a_time(tiny_server: ServerProcess) -> None:
    with Client(tiny_server) as client:
        begin(client, "hello", max_output_tokens=400)
        client.send("response.create")
        client.until("response.created")
        client.send("response.create")
        assert client.until("error")[-1]["error"]["code"] == "conversation_already_has_active_response"
        client.send("response.cancel")
        done = client.until("response.done")[-1]["response"]
        assert done["status"] in ("cancelled", "incomplete")
        client.send("response.create", response={"max_output_tokens": 2})
        assert client.until("response.done")[-1]["response"]["id"] != done["id"]


def status_of(call: Callable[[], Any]) -> int:
    with pytest.raises(websocket.WebSocketBadStatusException) as caught:
        call()
    return int(caught.value.status_code)


def test_an_engine_is_named_by_the_header(tiny_server: ServerProcess) -> None:
    with Client(tiny_server, header=["X-data-parallel-rank: 0"]) as client:
        begin(client, "hello", max_output_tokens=2)
        client.send("response.create")
        assert client.until("response.done")[-1]["response"]["status"] == "incomplete"
    assert status_of(lambda: Client(tiny_server, header=["X-data-parallel-rank: 1"])) == 400


def test_keys_limits_and_the_end_of_a_server(tiny_model: Callable[[str], Any]) -> None:
    flags = ("--served-model-name", "tiny", "--max-model-len", "256", "--num-gpu-blocks-override", "500")
    limits = ("--api-key", "k1", "k2", "--max-realtime-sessions", "2", "--max-body-bytes", "5000")
    with ServerProcess(tiny_model("llama"), *flags, *limits, "--realtime-idle-timeout", "4") as server:
        key = ["Authorization: Bearer k1"]
        assert status_of(lambda: Client(server)) == 401
        assert status_of(lambda: Client(server, header=["Authorization: Bearer no"])) == 401
        assert status_of(lambda: Client(server, "?model=no", header=key)) == 404
        assert status_of(lambda: Client(server, header=key, origin="http://elsewhere.example")) == 403
        offered = ["realtime", "openai-insecure-api-key.k2"]
        with Client(server, header=key) as one, Client(server, subprotocols=offered) as two:
            assert two.socket.getsubprotocol() == "realtime"
            assert status_of(lambda: Client(server, header=key)) == 429
            begin(one, "hello")
            two.until("session.created")
            two.send("conversation.item.create", item=message("a" * 6000))
            assert two.socket.recv_data()[0] == websocket.ABNF.OPCODE_CLOSE, "it is larger than --max-body-bytes"
            assert one.socket.recv_data()[0] == websocket.ABNF.OPCODE_CLOSE, "nothing came for a while"
        with Client(server, header=key) as idle, Client(server, header=key) as last:
            idle.until("session.created")
            begin(last, "hello", max_output_tokens=150)
            last.send("response.create")
            last.until("response.created")
            server.signal()
            assert idle.socket.recv_data()[0] == websocket.ABNF.OPCODE_CLOSE
            assert last.until("response.done")[-1]["response"]["usage"]["output_tokens"] > 0, "it is waited for"
            assert server.wait() == 0


def test_one_of_several_models(tiny_model: Callable[[str], Any]) -> None:
    names = [f"{name}={tiny_model(family)}" for name, family in (("a", "llama"), ("b", "gemma2"))]
    flags = ("--max-model-len", "256", "--kv-cache-memory-bytes", "100M")
    with ServerProcess("--cpu-threads=1", "--models", *names, *flags) as server:
        texts = {}
        for name in ("a", "b"):
            with Client(server, f"?model={name}") as client, server.client() as http:
                begin(client, "hello", max_output_tokens=6)
                client.send("response.create")
                texts[name] = said(client.until("response.done"))
                body = {"model": name, "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
                answer = http.post("/v1/chat/completions", json={**body, "max_tokens": 6}).json()
                assert texts[name] == answer["choices"][0]["message"]["content"]
        assert status_of(lambda: Client(server, "?model=c")) == 404
