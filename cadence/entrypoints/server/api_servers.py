"""The process of a server with several API processes: it owns the address, the engines and stored responses, and makes,
watches and ends the processes that serve.

Connections are accepted here and dealt out in turn. With one listening socket that all inherit, the one that wakes
first takes all that wait; with SO_REUSEPORT those that wait for a dead process are lost, and a second server could
take the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs
from cadence.config.server.serve_options import ServeOptions
from cadence.config.server.tenants import tenants_of
from cadence.core.contract.adapter_messages import NamedAdapter, TableCall
from cadence.core.contract.control_messages import ControlCall
from cadence.core.contract.front_messages import NOTHING_COUNTED, FromFront, ToFront
from cadence.core.contract.response_messages import ResumedResponse, StoreCall
from cadence.core.errors import EngineDeadError
from cadence.engine.fleet.engine_owner import EngineOwner
from cadence.engine.log_format import escaped
from cadence.engine.metrics.summed import summed
from cadence.engine.source import find_source
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.server.acceptor import Acceptor
from cadence.entrypoints.server.api_child import ApiChild, Unfinished
from cadence.entrypoints.server.api_children import ApiChildren
from cadence.entrypoints.server.http.tenant_ledger import open_ledger
from cadence.entrypoints.server.http.tenants import new_salt
from cadence.entrypoints.server.responses.manager import NO_FRONT, ResponseManager
from cadence.entrypoints.server.routes.served_adapters import served_at_start
from cadence.entrypoints.server.shared_adapters import SharedAdapters
from cadence.entrypoints.server.shared_control import SharedControl

MAX_FAILED_STARTS = 3  # of an API process, in a row: the server ends
RESTART_S = 0.2  # before a dead one is started again
REPORT_S = 1.0  # for processes to say what they have counted
SILENCE_FACTOR = 2  # a process that serves may be silent for this many times as long as an engine, before it is killed
STUCK_SHARE = 0.75  # of that time, after which one whose event loop is stuck hands its answers over, and ends
TICK_S = 1.0
EXIT_S = 20.0  # beyond the shutdown timeout, before processes that do not end are killed


class ApiServers:
    def __init__(
        self,
        options: ServeOptions,
        options_json: bytes,
        bound: socket.socket,
        owner: EngineOwner,
        adapters: SharedAdapters,
    ) -> None:
        """options_json: the options, as each process gets them"""
        self._options = options_json
        self._count = options.api_server_count
        self._silence_s = options.engine_heartbeat_timeout * SILENCE_FACTOR or math.inf
        self._acceptor = Acceptor(bound, self._deal)
        self._num_dealt = 0
        self._owner = owner
        self._responses = ResponseManager(self)
        self._adapters = adapters
        self._children = ApiChildren()
        self._control = SharedControl(owner.engines, self._children)
        self._gone = NOTHING_COUNTED  # what those that are gone have counted
        self._unfinished: list[Unfinished] = []  # answers of those that are gone
        self._tasks: set[asyncio.Future[None]] = set()
        self._is_ending = False
        self.status = 0
        self.all_serve = asyncio.Event()

    async def run(self) -> None:
        """Until all processes have ended, and no other is started."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.gather(*(self._keep(number) for number in range(1, self._count + 1)))
        finally:
            watching.cancel()
            self._control.close()

    def signal(self, number: signal.Signals) -> None:
        """To all processes. None is started again."""
        self._is_ending = True
        self._children.signal(number)

    def fail(self) -> None:
        """Ends the server, which has failed."""
        self.status = 1
        self.signal(signal.SIGTERM)

    async def _keep(self, number: int) -> None:
        """One process after the other."""
        failed = 0
        while not self._is_ending:
            has_served, status = await self._run(number)
            failed = 0 if has_served else failed + 1
            if self._is_ending:
                self.status = self.status or int(status != 0)
            elif failed == MAX_FAILED_STARTS or self._owner.is_dead:
                self.fail()
            else:
                print(f"cadence serve: API process {number} ended with status {status}; starting another", flush=True)
                await asyncio.sleep(RESTART_S)

    async def _run(self, number: int) -> tuple[bool, int]:
        """-> (whether it served, its exit status)"""
        child = await ApiChild.start(self._options)
        self._children.add(number, child)
        child.send(ToFront(table=self._adapters.table, hold=self._control.current))
        child.on_message = lambda message: self._received(number, child, message)
        self._owner.join(number, child.send)
        if self._is_ending:
            child.signal(signal.SIGTERM)
        status = await child.wait()
        self._owner.leave(number)
        self._children.remove(number)
        self._responses.gone(number)
        if not self._children.serving():
            self._acceptor.pause()
        self._gone = summed([self._gone, child.last_counts()])
        if child.unfinished:
            self._unfinished += child.unfinished
            print(f"cadence serve: {len(child.unfinished)} connections of API process {number} go on", flush=True)
        self._hand_on()
        return child.has_served, status

    def _hand_on(self) -> None:
        """Unfinished answers to processes that serve; they wait where there is none."""
        if self._is_ending:
            for unfinished in self._unfinished:
                unfinished.connection.close()
            self._unfinished.clear()
        while self._unfinished and (lively := self._lively()):
            self._children.by_number[lively[self._num_dealt % len(lively)]].go_on(self._unfinished.pop())
            self._num_dealt += 1

    def _received(self, number: int, child: ApiChild, message: FromFront) -> None:
        self._children.heard()
        if message.serving:
            self._acceptor.resume()
            self._responses.hand_over()
            self._hand_on()
        if len(self._children.serving()) == self._count:
            self.all_serve.set()
        if message.call is not None and not message.call_id:
            self._responses.take(number, message.call)
        elif message.call is not None:
            self._spawn(self._answer_call(number, child, message.call_id, message.call))
        elif message.table_call is not None:
            self._spawn(self._answer_table_call(child, message.call_id, message.table_call))
        elif message.control is not None:
            self._spawn(self._answer_control(child, message.call_id, message.control))
        elif message.call_id:
            self._spawn(self._answer(child, message.call_id))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_call(self, number: int, asking: ApiChild, call_id: int, call: StoreCall) -> None:
        asking.send(ToFront(call_id=call_id, reply=await self._responses.answer(number, call)))

    async def _answer_table_call(self, asking: ApiChild, call_id: int, call: TableCall) -> None:
        """When all that serve have the change, or are gone; those that start get it before they do."""
        before = self._adapters.table.version
        reply, table = self._adapters.take(call), self._adapters.table
        if table.version != before:
            self._children.tell(ToFront(table=table))
            await self._children.until_all(lambda child: child.table_version >= table.version)
        asking.send(ToFront(call_id=call_id, table_reply=reply))

    async def _answer_control(self, asking: ApiChild, call_id: int, call: ControlCall) -> None:
        asking.send(ToFront(call_id=call_id, answer=await self._control.answer(call)))

    def cancel(self, front: int, response_id: str) -> None:
        if front in self._children.by_number:
            self._children.by_number[front].send(ToFront(cancel=response_id))

    def resume(self, resumed: ResumedResponse) -> int:
        """By the process that is dealt the next connection."""
        serving = self._lively()
        if not serving:
            return NO_FRONT
        number = serving[self._num_dealt % len(serving)]
        self._num_dealt += 1
        self._children.by_number[number].send(ToFront(resumed=resumed))
        return number

    async def _answer(self, asking: ApiChild, call_id: int) -> None:
        """What the others have counted, as they say now."""
        asked_at = time.monotonic()
        for child in self._others(asking):
            child.send(ToFront(send_counts=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_S):
                await self._children.until(lambda: self._have_said(asked_at, asking))
        counts = summed([self._gone, *(child.counts for child in self._others(asking))])
        asking.send(ToFront(call_id=call_id, others=counts))

    def _have_said(self, since: float, asking: ApiChild) -> bool:
        return all(child.heard_at >= since for child in self._others(asking))

    def _deal(self, connection: socket.socket) -> None:
        """Round robin, past processes that say nothing. It is called only while one serves."""
        lively = self._lively()
        self._children.by_number[lively[self._num_dealt % len(lively)]].serve(connection)
        self._num_dealt += 1

    def _lively(self) -> list[int]:
        """Those that serve and have reported lately; where there are none, those that serve."""
        now = time.monotonic()
        children = self._children.by_number
        serving = [number for number, child in children.items() if child.has_served]
        return [one for one in serving if now - children[one].heard_at < self._silence_s / 4] or serving

    def _others(self, than: ApiChild) -> list[ApiChild]:
        return [child for child in self._children.all() if child is not than]

    async def _watch(self) -> None:
        """A process that is stopped, or stuck, holds connections that are not served."""
        while True:
            await asyncio.sleep(TICK_S)
            for child in self._children.serving():
                if time.monotonic() - child.heard_at > self._silence_s:
                    child.signal(signal.SIGKILL)


class ServerSignals:
    """The first lets requests finish, the second ends them, the third ends the processes."""

    def __init__(self, servers: ApiServers, shutdown_timeout: float) -> None:
        self._servers = servers
        self._timeout = shutdown_timeout
        self._count = 0

    def receive(self) -> None:
        self._count += 1
        self._servers.signal(signal.SIGTERM if self._count < 3 else signal.SIGKILL)
        if self._count > 1 or self._timeout:
            seconds = EXIT_S + (self._timeout if self._count == 1 else 0.0)
            asyncio.get_running_loop().call_later(seconds, self._servers.signal, signal.SIGKILL)


async def serve_many(
    args: EngineArgs,
    options: ServeOptions,
    start: tuple[Sequence[str], SupervisorLimits],
    bound: socket.socket,
    on_serving: Callable[[], None],
) -> int:
    """`start`: the command that makes an engine, and how long it is waited for. -> the exit status"""
    source = await asyncio.to_thread(find_source, args)
    applied = peer_env.applied(args, env.peer_variables())
    command, limits = start
    owner = EngineOwner(source.engine_options(applied), command, limits)
    child_options = dataclasses.asdict(_with_stuck_limit(options))
    ledger = open_ledger(tenants_of(options), "")
    process_options = {
        "args": dataclasses.asdict(args),
        "options": child_options,
        "tenant_salt": new_salt().hex(),
        "tenant_ledger": ledger.opened_by(),
    }
    adapters = served_at_start(options.lora_modules, (), "", enabled=True).all()
    named = [NamedAdapter(adapter.lora_name, adapter.lora_int_id, adapter.lora_path) for adapter in adapters]
    servers = ApiServers(options, json.dumps(process_options).encode(), bound, owner, SharedAdapters(named))
    signals = ServerSignals(servers, options.shutdown_timeout)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.receive)
    owner.start()
    announcing = asyncio.ensure_future(_announce(owner, servers, on_serving))
    try:
        await servers.run()
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        await owner.stop()
    return servers.status


def _with_stuck_limit(options: ServeOptions) -> ServeOptions:
    """A process whose event loop is stuck is silent: it hands its answers over before it is killed for that."""
    silence_s = options.engine_heartbeat_timeout * SILENCE_FACTOR or math.inf
    limit_s = min(options.event_loop_timeout, silence_s * STUCK_SHARE)
    return dataclasses.replace(options, event_loop_timeout=limit_s)


async def _announce(owner: EngineOwner, servers: ApiServers, on_serving: Callable[[], None]) -> None:
    try:
        await owner.wait_ready()
    except EngineDeadError as error:
        print(escaped(f"cadence serve: the engine did not start: {error}"), file=sys.stderr, flush=True)
        return servers.fail()
    await servers.all_serve.wait()
    on_serving()
