"""One of several processes that serve an address. Its standard input is one end of a socketpair; the server's process
holds the other.

    python -m cadence.entrypoints.server.api_process

The first message brings the options; the others channels to engines, and connections to serve. It ends when it is told
to by SIGTERM, as a server with one process does, and when the server's process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import uvloop

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.server.serve_options import ServeOptions
from cadence.core.contract.adapter_messages import AdapterTable, NamedAdapter, TableCall, TableReply, TableVerb
from cadence.core.contract.codec import decode_to_front, encode
from cadence.core.contract.control_messages import ControlAnswer, ControlCall
from cadence.core.contract.front_messages import NOTHING_COUNTED, FromFront, FrontCounts, ToFront
from cadence.core.contract.hold import KEEP, NO_HOLD, Hold
from cadence.core.contract.response_messages import UNKNOWN_RESPONSE, StoreCall, StoreReply
from cadence.core.errors import CadenceError, EngineDeadError
from cadence.core.lora_request import LoRARequest
from cadence.engine.fleet.engine_links import FRONT_LIMITS, EngineLinks
from cadence.engine.log_format import escaped, set_up_logging
from cadence.engine.log_queue import LogQueue, queue_output
from cadence.engine.supervise.engine_client import EngineCalls
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.engine_control import Control
from cadence.entrypoints.front_hold import FrontHold
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.control_link import ControlLink
from cadence.entrypoints.server.exit_deadline import ExitDeadline
from cadence.entrypoints.server.http.sockets import listen
from cadence.entrypoints.server.replacement import TakeUnfinished
from cadence.entrypoints.server.resume.unfinished import HandedOver, decode_answer, encode_answer
from cadence.entrypoints.server.routes.metrics import front_counts
from cadence.entrypoints.server.routes.response_resume import resume_response
from cadence.entrypoints.server.routes.served_adapters import AdapterLink, ServedAdapters
from cadence.entrypoints.server.routes.state import ServerState
from cadence.entrypoints.server.server import LOG_FLUSH_S, ServerLifecycle
from cadence.entrypoints.server.start_signals import StartSignals, StoppedWhileStarting
from cadence.process.async_channel import AsyncChannel
from cadence.process.channel import Channel
from cadence.process.ended import PARENT_GONE
from cadence.process.parent import open_wire, watch_parent

OPTIONS_S = 60.0  # for the options to arrive; they are sent before this process exists
COUNTS_S = 1.0  # between two reports
logger = logging.getLogger("cadence.server")
NO_REPLY = TableReply(done=False)
HAND_OVER_S = 2.0  # for the server's process to read what is handed over
ANSWER_S = 2.0  # for the counts of others, before those of this process are shown alone


class ParentLink:
    """The server's process, seen from here: brings engines, asks for counts, has those of the others, and keeps
    responses. Its end is the end of this process, so that nothing waits for it in vain."""

    def __init__(self, channel: Channel, links: EngineLinks, tenant_salt: bytes, tenant_ledger: str) -> None:
        self.tenant_salt = tenant_salt
        self.tenant_ledger = tenant_ledger
        self._links = links
        self._wire = channel
        self._channel = AsyncChannel(channel, self.take, lambda: os._exit(PARENT_GONE))
        self._state: ServerState | None = None  # None until it serves
        self._adopt: Callable[[socket.socket], None] = socket.socket.close
        self._resume: Callable[[Sequence[HandedOver]], None] = lambda handed: None
        self._table = AdapterTable(0)  # as last told; version 0 = that of the start
        self._hold = NO_HOLD  # as last told
        self._fronts: list[FrontHold] = []  # what holds requests here, once there is one
        self._cancel: Callable[[str], None] = lambda response_id: None
        self._calls: dict[int, asyncio.Future[ToFront]] = {}
        self._num_calls = 0
        self._tasks: set[asyncio.Future[None]] = set()

    async def counts(self) -> FrontCounts:
        try:
            answer = await asyncio.wait_for(self._call(counts=self._own()), ANSWER_S)
        except TimeoutError:
            return NOTHING_COUNTED
        return answer.others or NOTHING_COUNTED

    def open_store(self, cancel: Callable[[str], None]) -> ParentLink:
        self._cancel = cancel
        return self

    def open_adapters(self, served: ServedAdapters) -> AdapterLink:
        return TableLink(served, self._call_table)

    async def _call_table(self, call: TableCall) -> TableReply:
        return (await self._call(table_call=call)).table_reply or NO_REPLY

    def _take_table(self, table: AdapterTable) -> None:
        """Before it serves, it is kept until there is what it changes."""
        self._table = table
        if self._state is not None:
            self._state.adapters.set(_request(adapter) for adapter in table.adapters)
            self._send(FromFront(table_version=table.version))

    def open_control(self, engines: EngineCalls, front: FrontHold) -> Control:
        """A `ControlFactory`."""
        self._fronts.append(front)
        self._take_hold(self._hold)
        return ControlLink(self._call_control)

    async def _call_control(self, call: ControlCall) -> ControlAnswer:
        answer = (await self._call(control=call)).answer
        assert answer is not None
        return answer

    def _take_hold(self, hold: Hold) -> None:
        """Before there is a front, it is kept until there is one."""
        self._hold = hold
        for front in self._fronts:
            front.take(hold)
            self._send(FromFront(hold_version=hold.version))
            if hold.running != KEEP:
                self._spawn(self._say_quiet(front, hold))

    async def _say_quiet(self, front: FrontHold, hold: Hold) -> None:
        await front.quiet(hold)
        self._send(FromFront(quiet_version=hold.version))

    async def ask(self, call: StoreCall) -> StoreReply:
        return (await self._call(call=call)).reply or UNKNOWN_RESPONSE

    def send(self, call: StoreCall) -> None:
        self._send(FromFront(call=call))

    async def _call(self, **fields: Any) -> ToFront:
        self._num_calls += 1
        number = self._num_calls
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send(FromFront(call_id=number, **fields))
        try:
            return await future
        finally:
            del self._calls[number]

    def serving(self, life: ServerLifecycle, state: ServerState) -> None:
        self._state = state
        self._adopt, self._resume = life.adopt, life.resume
        if self._table.version:
            self._take_table(self._table)
        self._send(FromFront(serving=True, counts=self._own()))

    def hand_over(self, take_unfinished: TakeUnfinished) -> None:
        """In another thread than the event loop's, which is stuck: others go on with these answers. It is the last that
        this process says."""
        try:
            for one in take_unfinished():
                self._wire.send(encode(FromFront(unfinished=encode_answer(one.answer))), one.descriptor)
            self._wire.close(HAND_OVER_S)
        except Exception:
            logger.exception("not all answers are handed over")

    async def report(self) -> None:
        """Every second: what was counted outlives this process, and says that it lives."""
        while True:
            self.send_counts()
            await asyncio.sleep(COUNTS_S)

    def send_counts(self) -> None:
        self._send(FromFront(counts=self._own()))

    def _own(self) -> FrontCounts:
        return front_counts(self._state) if self._state is not None else NOTHING_COUNTED

    def _send(self, message: FromFront) -> None:
        self._channel.send(encode(message))

    def take(self, data: bytes) -> None:
        message = decode_to_front(data)
        if message.given_up:
            self._links.give_up(message.engine, message.given_up)
        elif message.lacks_ranks:
            self._links.lack_ranks(message.engine, message.lacks_ranks)
        elif message.engine >= 0:
            self._links.put(message, self._channel.take_socket())
        if message.connection:
            self._adopt(self._channel.take_socket())
        if message.unfinished:
            connection = self._channel.take_socket().detach()
            self._resume([HandedOver(connection, decode_answer(message.unfinished))])
        if message.send_counts:
            self.send_counts()
        if message.hold is not None:
            self._take_hold(message.hold)
        if message.table is not None:
            self._take_table(message.table)
        if message.cancel:
            self._cancel(message.cancel)
        if message.resumed is not None and self._state is not None:
            self._spawn(resume_response(message.resumed, self._state))
        future = self._calls.get(message.call_id)
        if future is not None and not future.done():
            future.set_result(message)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class TableLink:
    """Adapters, which another process has the table of. It comes before the reply to what changes it."""

    def __init__(self, served: ServedAdapters, call: Callable[[TableCall], Awaitable[TableReply]]) -> None:
        self._served = served
        self._call = call

    async def take_number(self, own: int) -> int:
        return (await self._call(TableCall(TableVerb.NUMBER, NamedAdapter("", 0, "")))).number

    async def add(self, adapter: LoRARequest) -> bool:
        named = NamedAdapter(adapter.lora_name, adapter.lora_int_id, adapter.lora_path, adapter.load_inplace)
        return (await self._call(TableCall(TableVerb.ADD, named))).done

    async def remove(self, name: str) -> LoRARequest | None:
        adapter = self._served.of(name)
        reply = await self._call(TableCall(TableVerb.REMOVE, NamedAdapter(name, 0, "")))
        return adapter if reply.done else None


def _request(adapter: NamedAdapter) -> LoRARequest:
    return LoRARequest(adapter.name, adapter.number, adapter.path, load_inplace=adapter.load_inplace)


async def serve(channel: Channel, logs: LogQueue) -> int:
    first, *more = channel.receive_first(OPTIONS_S)
    given: dict[str, Any] = json.loads(decode_to_front(first).options)
    args, options = EngineArgs(**given["args"]), ServeOptions(**given["options"])
    if options.enable_log_requests:
        logging.getLogger("cadence.server").setLevel(logging.INFO)
    links = EngineLinks(args.data_parallel_size)
    parent = ParentLink(channel, links, bytes.fromhex(given["tenant_salt"]), given["tenant_ledger"])
    for message in more:
        parent.take(message)
    reporting = asyncio.ensure_future(parent.report())
    start = AsyncLLM.start(args, limits=FRONT_LIMITS, open_client=links.open_client, open_control=parent.open_control)
    deadline = ExitDeadline(lambda: logs.flush(LOG_FLUSH_S))
    try:
        llm = await StartSignals(deadline, lambda line: None).run(start)
    except StoppedWhileStarting:
        return 0
    app = create_app(llm, options, logs, parent)
    life = ServerLifecycle(app, options, deadline, parent.hand_over)
    try:
        return await life.run(None, lambda: parent.serving(life, app.state.server))
    finally:
        await life.end_engine()
        parent.send_counts()
        reporting.cancel()


def main() -> int:
    wire = open_wire()
    watch_parent(wire)
    logs = queue_output()
    set_up_logging(env.log_level())
    listen.allow_many_connections()
    channel = Channel(wire, takes_descriptors=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, contextlib.suppress(asyncio.CancelledError):
            return runner.run(serve(channel, logs))
    except EngineDeadError:
        """The owner of the engines says why."""
    except CadenceError as error:
        print(escaped(f"cadence serve: {' '.join(str(error).split())}"), file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
