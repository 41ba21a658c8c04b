"""Models that come and go: loads one when it is first asked for, once however many ask, and makes room for it.

Everything happens on one event loop. `_advance` is called whenever something has changed: it grants what can be
granted, and begins what a plan of `residency` says. A load belongs to the catalog: no request that ends cuts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from cadence.core.errors import CadenceError
from cadence.entrypoints.server.several.entry import (
    CatalogEntry,
    ModelBusyError,
    ModelFailedError,
    ModelsClosedError,
    ModelTooLargeError,
    Source,
    Waiter,
)
from cadence.entrypoints.server.several.residency import (
    HOLDING,
    PATIENCE_S,
    ModelBooks,
    ModelState,
    Rules,
    Wanted,
    make_plan,
)

RETRY_S = 10.0  # after a failed load, in which requests are told why it failed and begin no other
CLOSED = "the server is shutting down"
logger = logging.getLogger("cadence.server")

T = TypeVar("T")


class Catalog(Generic[T]):
    def __init__(
        self,
        sources: Mapping[str, tuple[Source[T], Rules]],
        budget: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """budget: bytes for all of them"""
        self.budget = budget
        self.entries = {
            name: CatalogEntry(source, ModelBooks(name, rules)) for name, (source, rules) in sources.items()
        }
        self._clock = clock
        self._waiting: list[Waiter[T]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __getitem__(self, name: str) -> CatalogEntry[T]:
        return self.entries[name]

    @property
    def held(self) -> int:
        """Bytes."""
        return sum(entry.books.held for entry in self.entries.values())

    def num_waiting(self, name: str) -> int:
        """Requests."""
        return sum(waiter.entry.books.name == name for waiter in self._waiting)

    def ready(self, name: str) -> T | None:
        """Of a model in memory; looking at it is no use of it."""
        entry = self.entries[name]
        return entry.value if entry.books.state is ModelState.READY else None

    @contextlib.asynccontextmanager
    async def lease(self, name: str, seconds: float) -> AsyncGenerator[T]:
        """The model, loaded, which stays while this lasts. seconds: to wait for it. Raises one of `entry`'s errors."""
        value = await self.take(name, seconds)
        try:
            yield value
        finally:
            self.give_back(name)

    async def take(self, name: str, seconds: float) -> T:
        """`give_back` must follow."""
        if self._is_closed:
            raise ModelsClosedError(CLOSED)
        entry = self.entries[name]
        if entry.is_open and entry.value is not None:
            entry.books.users += 1
            entry.books.last_used = self._clock()
            return entry.value
        waiter = Waiter(entry, self._clock(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._advance()
        try:
            async with asyncio.timeout(seconds):
                value: T = await waiter.future
                return value
        except BaseException as error:
            self._withdraw(waiter)
            if not isinstance(error, TimeoutError):
                raise
        raise ModelBusyError(f"the model {name} is {entry.shown_state}; it was not ready within {seconds:g} s")

    def give_back(self, name: str) -> None:
        entry = self.entries[name]
        entry.books.users -= 1
        entry.books.last_used = self._clock()
        self._watch_idle(entry)
        if not entry.books.users:
            self._advance()

    async def load(self, name: str, seconds: float) -> None:
        """By command: also one that has just failed."""
        self.entries[name].failed_at = -math.inf
        async with self.lease(name, seconds):
            pass

    async def unload(self, name: str, is_cut: bool = False) -> bool:
        """By command, pinned or not: when its requests are over. is_cut: at once. -> whether it was in memory"""
        entry = self.entries[name]
        books = entry.books
        begins = books.state in (ModelState.UNLOADED, ModelState.FAILED, ModelState.LOADING)
        if begins and not books.is_changing:
            self._fail_waiters(entry, ModelFailedError(f"the model {name} was unloaded"))
            self._advance()
            return False
        self._fail_waiters(entry, ModelFailedError(f"the model {name} was unloaded"))
        if begins and entry.task is not None and not books.leaving:
            entry.task.cancel()
        books.leaving = True
        if is_cut and books.state is ModelState.READY and not books.is_changing:
            self._send_away(entry)
        self._advance()
        while books.leaving:
            entry.changed.clear()
            await entry.changed.wait()
        return True

    def lose(self, name: str, value: T, why: str) -> None:
        """Its engine is gone for good. value: what was loaded"""
        entry = self.entries[name]
        if entry.value is value and entry.books.state is ModelState.READY and not entry.books.is_changing:
            self._send_away(entry, why)

    def refuse_all(self) -> None:
        """No request waits any more, and none will."""
        self._is_closed = True
        for entry in self.entries.values():
            self._fail_waiters(entry, ModelsClosedError(CLOSED))

    async def close(self) -> None:
        """Unloads all of them at once. What runs is cut."""
        self.refuse_all()
        if self._patience is not None:
            self._patience.cancel()
        await asyncio.gather(*(self.unload(name, is_cut=True) for name in self.entries))
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _advance(self) -> None:
        for entry in self.entries.values():
            if entry.books.leaving and not entry.books.is_changing:
                self._leave(entry)
        self._grant()
        if not self._is_closed:
            self._carry_out_plan()
            self._grant()  # of those that need not go any more

    def _grant(self) -> None:
        for waiter in list(self._waiting):
            entry = waiter.entry
            if entry.is_open and entry.value is not None:
                entry.books.users += 1
                entry.books.last_used = self._clock()
                self._answer(waiter, entry.value)
            elif entry.books.state is ModelState.FAILED and self._clock() - entry.failed_at < RETRY_S:
                self._answer(waiter, ModelFailedError(entry.why))

    def _carry_out_plan(self) -> None:
        wanted, everyone = self._wanted(), [entry.books for entry in self.entries.values()]
        for books in everyone:
            books.yields = False
        plan = make_plan(wanted, everyone, self.budget)
        for books in plan.yields:
            books.yields = True
        for books in plan.hopeless:
            self._fail_waiters(self.entries[books.name], self._too_large(books))
        for books in plan.leave:
            self._send_away(self.entries[books.name], sleeps=books.rules.sleeps and books.state is ModelState.READY)
        for books in plan.load:
            self._bring(self.entries[books.name])

    def _wanted(self) -> list[Wanted]:
        """Models to be loaded or woken, whose need is known; that of others is asked for."""
        first: dict[str, Waiter[T]] = {}
        for waiter in self._waiting:
            first.setdefault(waiter.entry.books.name, waiter)
        found, now = [], self._clock()
        for waiter in first.values():
            books = waiter.entry.books
            if books.is_changing or books.leaving or books.state is ModelState.READY:
                continue
            if books.need is None:
                self._begin(waiter.entry, self._estimate(waiter.entry))
                continue
            found.append(Wanted(books, now - waiter.since))
            if now - waiter.since < PATIENCE_S and self._patience is None:
                seconds = PATIENCE_S - (now - waiter.since)
                self._patience = asyncio.get_running_loop().call_later(seconds, self._patience_over)
        return found

    def _patience_over(self) -> None:
        self._patience = None
        self._advance()

    def _leave(self, entry: CatalogEntry[T]) -> None:
        """It was told to."""
        if entry.books.state not in HOLDING:
            entry.books.leaving = False
            entry.changed.set()
        elif not entry.books.users:
            self._send_away(entry)

    def _watch_idle(self, entry: CatalogEntry[T]) -> None:
        rules = entry.books.rules
        if entry.idle_timer is None and not rules.pinned and rules.keep_alive != math.inf:
            self._watch_idle_for(entry, rules.keep_alive)

    def _watch_idle_for(self, entry: CatalogEntry[T], seconds: float) -> None:
        entry.idle_timer = asyncio.get_running_loop().call_later(seconds, self._idle_over, entry)

    def _idle_over(self, entry: CatalogEntry[T]) -> None:
        entry.idle_timer = None
        books = entry.books
        if books.state is not ModelState.READY or books.users or books.is_changing:
            return  # `give_back` watches again
        left = books.last_used + books.rules.keep_alive - self._clock()
        if left > 0:
            self._watch_idle_for(entry, left)
        else:
            self._send_away(entry, sleeps=books.rules.sleeps)

    def _too_large(self, books: ModelBooks) -> ModelTooLargeError:
        need, budget = (books.need or 0) / 2**20, self.budget / 2**20
        return ModelTooLargeError(
            f"the model {books.name} needs {need:,.0f} MiB of memory, more than pinned ones leave of {budget:,.0f} MiB"
        )

    def _fail_waiters(self, entry: CatalogEntry[T], error: CadenceError) -> None:
        for waiter in [each for each in self._waiting if each.entry is entry]:
            self._answer(waiter, error)

    def _answer(self, waiter: Waiter[T], answer: T | CadenceError) -> None:
        self._waiting.remove(waiter)
        if waiter.future.done():
            if not isinstance(answer, CadenceError):
                waiter.entry.books.users -= 1  # its request has left in this moment
        elif isinstance(answer, CadenceError):
            waiter.future.set_exception(answer)
        else:
            waiter.future.set_result(answer)

    def _withdraw(self, waiter: Waiter[T]) -> None:
        """Its request has left. It may have been granted in the same moment."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            self._advance()
        elif waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
            self.give_back(waiter.entry.books.name)

    def _bring(self, entry: CatalogEntry[T]) -> None:
        """Its memory is its own from now on."""
        books, value = entry.books, entry.value
        books.state, books.held = ModelState.LOADING, max(books.need or 0, books.held)
        self._begin(entry, self._load(entry) if value is None else self._wake(entry, value))

    def _send_away(self, entry: CatalogEntry[T], why: str = "", sleeps: bool = False) -> None:
        """Its memory is free soon. why: it has failed"""
        value = entry.value
        assert value is not None
        entry.books.state, entry.value = ModelState.UNLOADING, value if sleeps else None
        self._begin(entry, self._put_to_sleep(entry, value) if sleeps else self._put_out(entry, value, why))

    def _begin(self, entry: CatalogEntry[T], work: Coroutine[Any, Any, None]) -> None:
        """One thing at a time is done to a model."""
        assert not entry.books.is_changing
        entry.books.is_changing = True
        task = entry.task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._done, entry, work))

    def _done(self, entry: CatalogEntry[T], work: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        """`work` catches what its source raises; it may be cancelled before it begins."""
        work.close()
        self._tasks.discard(task)
        books = entry.books
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the catalog of models failed on %s", books.name, exc_info=error)
        if books.state is ModelState.LOADING:
            books.state = ModelState.UNLOADED if entry.value is None else ModelState.SLEEPING
            books.held = 0 if entry.value is None else books.held
        books.is_changing, entry.task = False, None
        entry.changed.set()
        self._advance()

    async def _estimate(self, entry: CatalogEntry[T]) -> None:
        try:
            entry.books.need = await entry.source.need()
        except asyncio.CancelledError:
            pass  # it was told to leave
        except Exception as error:
            self._fail(entry, error)

    async def _load(self, entry: CatalogEntry[T]) -> None:
        began = self._clock()
        try:
            loaded = await entry.source.load()
        except asyncio.CancelledError:
            pass  # it was told to leave; `_done` writes it down
        except Exception as error:
            self._fail(entry, error)
        else:
            entry.value, entry.num_loads = loaded.value, entry.num_loads + 1
            entry.load_seconds, entry.why = self._clock() - began, ""
            self._is_ready(entry, loaded.held)

    async def _wake(self, entry: CatalogEntry[T], value: T) -> None:
        try:
            held = await entry.source.wake(value)
        except (Exception, asyncio.CancelledError) as error:
            if not isinstance(error, asyncio.CancelledError):
                logger.error("the model %s did not wake up: it is loaded again", entry.books.name, exc_info=error)
            entry.books.state, entry.value = ModelState.UNLOADING, None
            await self._put_out(entry, value, "")
        else:
            self._is_ready(entry, held)

    def _is_ready(self, entry: CatalogEntry[T], held: int) -> None:
        books = entry.books
        books.state, books.held, books.need = ModelState.READY, held, min(held, self.budget)
        books.last_used = self._clock()
        self._watch_idle(entry)

    def _fail(self, entry: CatalogEntry[T], error: Exception) -> None:
        if not isinstance(error, CadenceError):
            logger.error("the model %s could not be loaded", entry.books.name, exc_info=error)
        entry.why = str(error) if isinstance(error, CadenceError) else "it could not be loaded; the log says why"
        entry.failed_at = self._clock()
        entry.books.state, entry.books.held = ModelState.FAILED, 0

    async def _put_to_sleep(self, entry: CatalogEntry[T], value: T) -> None:
        try:
            entry.books.held = await entry.source.sleep(value)
        except Exception:
            logger.exception("the model %s does not sleep: it is unloaded", entry.books.name)
            entry.value = None
            await self._put_out(entry, value, "")
        else:
            entry.books.state = ModelState.SLEEPING

    async def _put_out(self, entry: CatalogEntry[T], value: T, why: str) -> None:
        books = entry.books
        try:
            await entry.source.unload(value)
        except Exception:
            logger.exception("the model %s was not unloaded in order", books.name)
        books.state, books.held = ModelState.UNLOADED, 0
        if why:
            books.state, entry.why, entry.failed_at = ModelState.FAILED, why, self._clock()
