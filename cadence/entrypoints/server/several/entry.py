"""One model as the catalog knows it: its books, what loads it, and why it failed."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from cadence.core.errors import CadenceError
from cadence.entrypoints.server.several.residency import ModelBooks, ModelState

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Loaded(NamedTuple, Generic[T_co]):
    value: T_co
    held: int  # bytes


class Source(Protocol[T]):
    """How a model is loaded and unloaded. A load that raises, or is cancelled, leaves nothing behind."""

    async def need(self) -> int:
        """Bytes that it will take, estimated."""
        ...

    async def load(self) -> Loaded[T]: ...

    async def unload(self, value: T) -> None: ...

    async def sleep(self, value: T) -> int:
        """-> bytes that it still holds"""
        ...

    async def wake(self, value: T) -> int:
        """-> bytes that it holds again"""
        ...


class ModelFailedError(CadenceError):
    """It cannot be loaded now; says why."""


class ModelTooLargeError(ModelFailedError):
    """The memory that others leave is too small for it, whatever goes."""


class ModelBusyError(CadenceError):
    """It did not become ready in time."""


class ModelsClosedError(CadenceError):
    """No model is loaded any more."""


@dataclass(slots=True, eq=False)
class CatalogEntry(Generic[T]):
    """`books` are what plans are made of."""

    source: Source[T]
    books: ModelBooks
    value: T | None = None  # while it is ready or asleep
    why: str = ""  # it failed
    failed_at: float = -math.inf
    num_loads: int = 0
    load_seconds: float = 0.0  # of the last one
    task: asyncio.Task[None] | None = None  # what is being done to it
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set when that is over
    idle_timer: asyncio.TimerHandle | None = None

    @property
    def shown_state(self) -> ModelState:
        """One whose need is being found out, or whose files are fetched, is loading."""
        books = self.books
        is_found = books.state in (ModelState.UNLOADED, ModelState.FAILED) and books.is_changing
        return ModelState.LOADING if is_found else books.state

    @property
    def is_open(self) -> bool:
        """Takes requests at once."""
        books = self.books
        is_ready = books.state is ModelState.READY
        return is_ready and not (books.is_changing or books.yields or books.leaving)


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    entry: CatalogEntry[T]
    since: float
    future: asyncio.Future[T]
