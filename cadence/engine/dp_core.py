"""Several engines in processes of their own, asked without an event loop: `EngineCore`'s verbs for an `LLM` object."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from cadence.config.args import EngineArgs
from cadence.config.resolve.generation import default_sampling
from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.engine_state import EngineStats
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.update import AnyUpdate, RequestUpdate
from cadence.core.errors import ConfigError, EngineDeadError
from cadence.engine.build import EngineParts
from cadence.engine.fleet.dp_client import open_engines
from cadence.engine.source import check_vocabulary, find_source
from cadence.engine.supervise.engine_client import EngineClient
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import ENGINE_COMMAND, entry_of

T = TypeVar("T")


class DpCore:
    """Its engines live in the event loop of a thread; updates come through a queue."""

    def __init__(self, open_client: Callable[[], EngineClient]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cadence-engines", daemon=True)
        self._thread.start()
        self._arrived: queue.SimpleQueue[Sequence[AnyUpdate] | EngineDeadError] = queue.SimpleQueue()
        self._outbox: list[AnyUpdate] = []
        self._open: set[str] = set()  # ids of requests that have not ended
        self._client = self._wait(self._start(open_client))

    def wait_ready(self) -> EngineInfo:
        return self._wait(self._client.wait_ready())

    def add(self, request: EngineRequest, engine: int | None = None) -> None:
        entry = entry_of(request, engine)
        self._open.add(request.request_id)
        self._loop.call_soon_threadsafe(self._client.submit, entry)

    def abort(self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT) -> None:
        found = [request_id for request_id in request_ids if request_id in self._open]
        self._open -= set(found)
        self._loop.call_soon_threadsafe(self._client.drop, found)
        self._outbox += [RequestUpdate.end(request_id, reason) for request_id in found]

    def begin(self) -> None:
        """Engines begin by themselves."""

    def step(self) -> list[AnyUpdate]:
        """What engines have said; waits for it where there is nothing else to tell."""
        updates = self.take_ended()
        if updates or not self._open:
            return updates
        arrived = self._arrived.get()
        if isinstance(arrived, EngineDeadError):
            self._arrived.put(arrived)  # for the next caller
            raise EngineDeadError(str(arrived))
        news = [update for update in arrived if update.request_id in self._open]
        self._open -= {update.request_id for update in news if update.finish_reason is not None}
        return news

    def take_ended(self) -> list[AnyUpdate]:
        updates, self._outbox = self._outbox, []
        return updates

    def has_unfinished(self) -> bool:
        return bool(self._outbox or self._open)

    def call(self, verb: Verb[P, A], payload: P) -> Future[A]:
        """Waits for the answer, which comes within the verb's deadline."""
        answer = asyncio.run_coroutine_threadsafe(self._client.call(verb, payload), self._loop)
        wait((answer,))
        return answer

    def prepare(self) -> None:
        """Calls have been carried out when they return."""

    def stats_by_engine(self) -> list[EngineStats]:
        return [state.stats for state in self._wait(self._client.states(with_blocks=False))]

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._wait(self._client.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, open_client: Callable[[], EngineClient]) -> EngineClient:
        client = open_client()
        client.start()
        self._pumping = asyncio.ensure_future(self._pump(client))
        return client

    async def _pump(self, client: EngineClient) -> None:
        try:
            async for batch in client.updates():
                self._arrived.put(batch)
        except EngineDeadError as error:
            self._arrived.put(error)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def build_engines(args: EngineArgs, processors: Sequence[Callable[..., Any]]) -> EngineParts:
    """As `build_engine`, for data_parallel_size > 1."""
    if processors:
        raise ConfigError(
            "logits_processors are Python functions and cannot be sent to engines in other processes; "
            "use data_parallel_size=1",
            "logits_processors",
        )
    source = find_source(args)
    core = DpCore(lambda: open_engines(source.engine_options(args), ENGINE_COMMAND, SupervisorLimits()))
    try:
        tokenizer = source.load_tokenizer(args.skip_tokenizer_init)
        info = core.wait_ready()
        check_vocabulary(tokenizer, info.vocab_size)
        config = source.resolve_front(args, info)
    except BaseException:
        core.close()
        raise
    return EngineParts(
        config=config,
        core=core,
        tokenizer=tokenizer,
        vocab_size=info.vocab_size,
        num_blocks=info.num_blocks,
        caps=info,
        device_name=info.device_name,
        default_sampling=default_sampling(args, source.hf),
    )
