"""The fronts of an engine process: the one that made it, or several that its owner introduces."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import defaultdict
from dataclasses import replace
from typing import Any, Protocol

from cadence.core.contract.codec import decode_to_engine, encode
from cadence.core.contract.engine_state import EngineState
from cadence.core.contract.messages import EngineInfo, FromEngine, ToEngine
from cadence.core.contract.request import EngineRequest
from cadence.core.contract.update import RequestUpdate, TokenUpdates
from cadence.process.channel import NO_DESCRIPTOR, Channel

OWNER = 0  # the front, or the owner's number, which sends no requests


class Fronts(Protocol):
    """Commands in, with the number of the front that sent them; messages out."""

    def ready(self, info: EngineInfo) -> None:
        """Requests can be taken."""
        ...

    def receive(self, wait_s: float) -> list[tuple[int, ToEngine]]:
        """What has come, waiting at most `wait_s` for the first. Raises EOFError when the owner is gone."""
        ...

    def taken(self, front: int, request: EngineRequest) -> EngineRequest:
        """A front's request under the id that it has in the core."""
        ...

    def core_id(self, front: int, request_id: str) -> str: ...

    def shown(self, front: int, answer: Any) -> Any:
        """An answer as this front knows its requests: by its own ids."""
        ...

    def send(self, front: int, message: FromEngine) -> None: ...

    def send_updates(self, updates: list[RequestUpdate], tokens: TokenUpdates) -> None:
        """Of a step: each front gets its own, in one message."""
        ...

    def beat(self, heartbeat: bytes) -> None:
        """From another thread. A front that does not read counts no beats either."""
        ...

    def fail(self, last: bytes) -> None:
        """Says to all what this engine ends of."""
        ...


class OneFront:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def ready(self, info: EngineInfo) -> None:
        self._channel.send(encode(FromEngine(ready=info)))

    def receive(self, wait_s: float) -> list[tuple[int, ToEngine]]:
        return [(OWNER, decode_to_engine(message)) for message in self._channel.receive(wait_s)]

    def taken(self, front: int, request: EngineRequest) -> EngineRequest:
        return request

    def core_id(self, front: int, request_id: str) -> str:
        return request_id

    def shown(self, front: int, answer: Any) -> Any:
        return answer

    def send(self, front: int, message: FromEngine) -> None:
        self._channel.send(encode(message))

    def send_updates(self, updates: list[RequestUpdate], tokens: TokenUpdates) -> None:
        self._channel.send(encode(FromEngine(updates=updates, tokens=tokens)))

    def beat(self, heartbeat: bytes) -> None:
        if not self._channel.is_congested:
            self._channel.send(heartbeat)

    def fail(self, last: bytes) -> None:
        self._channel.send(last)


class ManyFronts:
    """Ids are told apart by the number of their front. The requests of a front that is gone are aborted."""

    def __init__(self, owner: Channel) -> None:
        owner.takes_descriptors = True
        self._channels: dict[int, Channel] = {OWNER: owner}
        self._requests: dict[int, dict[str, str]] = defaultdict(dict)  # by front: its own ids by those of the core
        self._fronts: dict[str, int] = {}  # by id in the core
        self._numbered: dict[int, int] = {}  # fronts, by the core's number of a request
        self._ready = b""

    def ready(self, info: EngineInfo) -> None:
        self._ready = encode(FromEngine(ready=info))
        self._channels[OWNER].send(self._ready)

    def receive(self, wait_s: float) -> list[tuple[int, ToEngine]]:
        found: list[tuple[int, ToEngine]] = []
        for front in self._readable(wait_s):
            try:
                messages = self._channels[front].receive(0.0)
            except EOFError:
                if front == OWNER:
                    raise
                found.append(self._gone(front))
                continue
            for message in messages:
                commands = decode_to_engine(message)
                if commands.front:
                    found += self._introduced(commands.front)
                elif commands.stop and front != OWNER:  # it leaves, and the engine stays
                    found.append(self._gone(front))
                    break
                found.append((front, commands))
        return found

    def taken(self, front: int, request: EngineRequest) -> EngineRequest:
        core_id = self.core_id(front, request.request_id)
        self._requests[front][core_id] = request.request_id
        self._fronts[core_id] = front
        return replace(request, request_id=core_id)

    def core_id(self, front: int, request_id: str) -> str:
        return f"{front}:{request_id}"

    def shown(self, front: int, answer: Any) -> Any:
        return self._seen_by(front, answer) if isinstance(answer, EngineState) else answer

    def send(self, front: int, message: FromEngine) -> None:
        for update in message.updates:
            self._ended(self.core_id(front, update.request_id))
        self._write(front, encode(message))

    def send_updates(self, updates: list[RequestUpdate], tokens: TokenUpdates) -> None:
        tokens_by_front = self._shared_out(tokens)
        parts: dict[int, list[RequestUpdate]] = defaultdict(list)
        for update in updates:
            core_id = update.request_id
            front = self._fronts.get(core_id, OWNER)
            self._note_number(update, front)
            if front == OWNER:
                continue  # of a front that is gone
            update.request_id = self._requests[front][core_id]
            if update.finish_reason is not None:
                self._ended(core_id)
            parts[front].append(update)
        for front in parts.keys() | tokens_by_front.keys():
            tokens = tokens_by_front.get(front) or TokenUpdates()
            self._write(front, encode(FromEngine(updates=parts.get(front, []), tokens=tokens)))

    def beat(self, heartbeat: bytes) -> None:
        for front, channel in list(self._channels.items()):
            if not channel.is_congested:
                self._write(front, heartbeat)

    def fail(self, last: bytes) -> None:
        for front in list(self._channels):
            self._write(front, last)

    def _shared_out(self, tokens: TokenUpdates) -> dict[int, TokenUpdates]:
        """By front."""
        found: dict[int, TokenUpdates] = defaultdict(TokenUpdates)
        numbered = self._numbered
        if tokens.counts:
            for number, token_ids in tokens.each():
                found[numbered[number]].extend([number], [token_ids])
            return found
        for number, token_id in zip(tokens.numbers, tokens.token_ids, strict=True):
            part = found[numbered[number]]
            part.numbers.append(number)
            part.token_ids.append(token_id)
        return found

    def _note_number(self, update: RequestUpdate, front: int) -> None:
        """Whose tokens may come by it, until the request ends."""
        if update.finish_reason is not None:
            self._numbered.pop(update.number, None)
        elif update.number:
            self._numbered[update.number] = front

    def _readable(self, wait_s: float) -> list[int]:
        poll = select.poll()
        numbers = {}
        for front, channel in self._channels.items():
            poll.register(channel.fileno(), select.POLLIN | (select.POLLOUT if channel.is_congested else 0))
            numbers[channel.fileno()] = front
        if self._channels[OWNER].bell != NO_DESCRIPTOR:
            poll.register(self._channels[OWNER].bell, select.POLLIN)
        return [numbers[descriptor] for descriptor, _ in poll.poll(wait_s * 1000) if descriptor in numbers]

    def _introduced(self, front: int) -> list[tuple[int, ToEngine]]:
        """A channel to this front came with the message. -> the end of the one before it, where there was one"""
        end = socket.socket(fileno=self._channels[OWNER].descriptors.popleft())
        before = [self._gone(front)] if front in self._channels else []
        self._channels[front] = Channel(end)
        self._write(front, self._ready)
        return before

    def _gone(self, front: int) -> tuple[int, ToEngine]:
        self._channels.pop(front).close(0.0)
        names = self._requests.pop(front, {})
        for core_id in names:
            del self._fronts[core_id]
        return front, ToEngine(abort=list(names.values()))

    def _ended(self, core_id: str) -> None:
        front = self._fronts.pop(core_id, OWNER)
        self._requests[front].pop(core_id, None)

    def _write(self, front: int, data: bytes) -> None:
        """A front that has just gone reads nothing: the next look at its channel says so."""
        channel = self._channels.get(front)
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send(data)

    def _seen_by(self, front: int, state: EngineState) -> EngineState:
        own = self._requests[front]
        shown = [
            [replace(view, request_id=own.get(view.request_id, view.request_id)) for view in views]
            for views in (state.running, state.waiting)
        ]
        return replace(state, running=shown[0], waiting=shown[1])
