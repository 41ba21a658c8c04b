"""What sessions of /v1/realtime hold is bounded, and large messages are read beside the event loop."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import websocket

from cadence.core.errors import CadenceError
from cadence.entrypoints.server.routes.realtime import session
from cadence.entrypoints.server.routes.realtime.events import message_item
from cadence.entrypoints.server.routes.realtime.items import ITEM_SIZE, MOST_ITEMS, ConversationRoom, SessionItems
from tests.server.test_completions import Serve


def item(text: str, **more: Any) -> dict[str, Any]:
    return message_item({"content": [{"type": "input_text", "text": text}], **more})


def test_a_conversation_has_so_many_characters_and_items() -> None:
    room = ConversationRoom(1 << 40)
    small = SessionItems(room, 100_000)
    first = item("a" * 60_000)
    assert small.add(first) is None and small.add(item("b")) == first["id"]
    with pytest.raises(CadenceError, match="at most 100000 characters"):
        small.add(item("c" * 60_000))
    small.delete(first["id"])
    assert small.add(item("c" * 60_000)) is not None and 60_000 < small.size < 100_000
    many = SessionItems(room, 1 << 40)
    for _ in range(MOST_ITEMS):
        many.add(item(""))
    with pytest.raises(CadenceError, match="at most 4096 items"):
        many.add(item(""))
    assert many.size >= MOST_ITEMS * ITEM_SIZE
    parts = SessionItems(room, 100_000)
    with pytest.raises(CadenceError, match="characters"):
        parts.add(message_item({"content": [{"type": "input_text", "text": ""}] * 5_000}))


def test_all_conversations_together_have_so_much_room() -> None:
    room = ConversationRoom(100_000)
    one, two = SessionItems(room, 100_000), SessionItems(room, 100_000)
    one.add(item("a" * 60_000))
    with pytest.raises(CadenceError, match="as much of conversations as it may"):
        two.add(item("a" * 60_000))
    one.clear()
    two.add(item("a" * 60_000))
    two.clear()
    assert room.held == 0


def test_large_messages_are_read_beside_the_event_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    check, read_in, loop = session.check_json, dict[bool, int](), list[int]()

    def noted(raw: bytes, limits: Any) -> None:
        read_in[len(raw) > 100_000] = threading.get_ident()
        check(raw, limits)

    monkeypatch.setattr(session, "check_json", noted)
    app = serve(max_body_bytes=2**20, max_held_body_bytes=2**20)
    app.do(lambda: loop.append(threading.get_ident()))
    socket = websocket.create_connection(f"{app.url.replace('http', 'ws', 1)}/v1/realtime?model=fake", timeout=60)
    told: list[dict[str, Any]] = [json.loads(socket.recv())]
    for text in ("a", "a" * 600_000, "a" * 600_000):
        content = [{"type": "input_text", "text": text}]
        socket.send(json.dumps({"type": "conversation.item.create", "item": {"content": content}}))
        while told[-1]["type"] not in ("conversation.item.done", "error"):
            told.append(json.loads(socket.recv()))
        told.append({"type": "next"})
    socket.send(json.dumps({"type": "session.update", "session": {"instructions": "a" * (2**20 - 200)}}))
    assert json.loads(socket.recv())["type"] == "session.updated"
    socket.close()
    assert [event["type"] for event in told].count("conversation.item.done") == 2
    (error,) = [event["error"] for event in told if event["type"] == "error"]
    assert error["param"] == "item" and "characters" in error["message"]
    assert read_in[True] not in loop and read_in[False] in loop


def test_nothing_is_compressed(serve: Serve) -> None:
    """A little could become very much, on the event loop."""
    app = serve()
    offered = ["Sec-WebSocket-Extensions: permessage-deflate"]
    socket = websocket.create_connection(f"{app.url.replace('http', 'ws', 1)}/v1/realtime", timeout=60, header=offered)
    assert "sec-websocket-extensions" not in socket.getheaders()
    socket.close()
