"""Takes connections with unfinished answers from an event loop that is stuck, in another thread.

The loop may get a turn at any moment, so for each connection:

    1. look: how far the answer is
    2. move: the connection to another descriptor, and a dead socket to its own; nothing more gets to the client
    3. look again: where anything has changed, it is not handed over, and ends with this process
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable

from starlette.types import Scope

from cadence.engine.text.held_updates import StreamPosition
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.server.http.outbox import BODY_WRITER
from cadence.entrypoints.server.http.request_ids import engine_ids, names
from cadence.entrypoints.server.http.sockets.connection import BoundedHttpProtocol
from cadence.entrypoints.server.http.uvicorn_private import AnswerState
from cadence.entrypoints.server.resume.suspects import Suspects
from cadence.entrypoints.server.resume.unfinished import HandedOver, UnfinishedAnswer

MAX_HANDED = 4096  # connections
DROPPED_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"expect"})  # the body comes with the head
logger = logging.getLogger("cadence.server")


class HandOver:
    def __init__(self, llm_of: Callable[[Scope], AsyncLLM], suspects: Suspects) -> None:
        self._llm_of = llm_of
        self._suspects = suspects

    def take(self, connections: Iterable[object]) -> list[HandedOver]:
        """Connections that are not among these are closed with the process."""
        handed = []
        dead, other = socket.socketpair()
        other.close()
        with dead:
            for connection in _busy_first(connections)[:MAX_HANDED]:
                handed += self._take(connection, dead.fileno())
        return handed

    def _take(self, connection: BoundedHttpProtocol, dead: int) -> list[HandedOver]:
        descriptor = -1
        try:
            answer, own = self._look(connection), connection.descriptor
            if answer is None or own < 0:
                return []
            descriptor = os.dup(own)
            os.dup2(dead, own, inheritable=False)
            if self._look(connection) == answer:
                return [HandedOver(descriptor, answer)]
        except Exception:  # of one connection: the loop has changed what is read here
            logger.exception("a request could not be handed over")
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return []

    def _look(self, connection: BoundedHttpProtocol) -> UnfinishedAnswer | None:
        """None where it cannot be gone on with."""
        state = connection.answer_state
        if state is None:
            return None if connection.has_part_of_request else _idle(b"")
        if state.unsent is None:
            return None
        if state.is_complete:
            return None if connection.has_part_of_request else _idle(state.unsent)
        if state.body is None or self._is_suspect(connection, state.scope):
            return None
        closes = connection.has_part_of_request or not state.is_newest
        if state.is_begun:
            return self._begun(state, state.unsent, closes)
        positions = [_seed_of(self._llm_of(state.scope).position(one)) for one in engine_ids(state.scope)]
        content, drawn = _content(state), names(state.scope)
        return UnfinishedAnswer(content, state.unsent, False, closes, drawn, positions)

    def _begun(self, state: AnswerState, unsent: bytes, closes: bool) -> UnfinishedAnswer | None:
        """A stream, whose reader waits for what comes next: all before that was put into the outbox."""
        ids, writer = engine_ids(state.scope), state.scope.get(BODY_WRITER)
        if not state.is_chunked or len(ids) != 1 or writer is None:
            return None
        position, pending = self._llm_of(state.scope).position(ids[0]), writer.unflushed
        if position is None or not position.is_between or pending is None:
            return None
        unsent += b"%x\r\n%b\r\n" % (len(pending), pending) if pending else b""
        return UnfinishedAnswer(_content(state), unsent, True, closes, names(state.scope), [position])

    def _is_suspect(self, connection: BoundedHttpProtocol, scope: Scope) -> bool:
        streams = [self._llm_of(scope).stream(one) for one in engine_ids(scope)]
        return self._suspects.include_any((connection, scope, scope.get(BODY_WRITER), *streams))


def _busy_first(connections: Iterable[object]) -> list[BoundedHttpProtocol]:
    known = [one for one in list(connections) if isinstance(one, BoundedHttpProtocol)]
    return sorted(known, key=lambda one: one.is_newest_answered)


def _idle(unsent: bytes) -> UnfinishedAnswer:
    """Of a connection without a request, or whose answer was complete."""
    return UnfinishedAnswer(b"", unsent, is_begun=False, closes=False, names={}, positions=[])


def _seed_of(position: StreamPosition | None) -> StreamPosition | None:
    """Nothing was read of it."""
    return None if position is None else StreamPosition(position.seed, {})


def _content(state: AnswerState) -> bytes:
    scope, body = state.scope, state.body or b""
    query = scope["query_string"]
    path = scope["raw_path"] + (b"?" + query if query else b"")
    line = b"%b %b HTTP/%b\r\n" % (scope["method"].encode(), path, scope["http_version"].encode())
    headers = [b"%b: %b\r\n" % pair for pair in scope["headers"] if pair[0] not in DROPPED_HEADERS]
    return b"".join([line, *headers, b"content-length: %d\r\n\r\n" % len(body), body])
