"""Whose memory is given to whom. Plain bookkeeping: nothing here waits, and nothing is begun.

    unloaded --> loading --> ready <--> sleeping        each but the first two may go to `unloading`, then `unloaded`;
                    |                                   sleeping --> loading is waking up
                    +--> failed

A plan goes through the models that are wanted, the one that waited longest first. Each gets room that is free; else
others are chosen to go: idle ones before busy ones, the least recently used first, never a pinned one. A busy one goes
when its requests are over; it takes no new ones once the one that wants its place has waited for `PATIENCE_S`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

PATIENCE_S = 2.0  # for which requests of models that are in memory overtake one that waits for their place
FOREVER = math.inf


class ModelState(StrEnum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    UNLOADING = "unloading"
    FAILED = "failed"


HOLDING = (ModelState.READY, ModelState.SLEEPING)  # in memory, and may be asked to go


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says of a model."""

    keep_alive: float = FOREVER  # seconds without a request after which it goes, needed or not
    pinned: bool = False  # never goes to make room
    sleeps: bool = False  # is put to sleep before it is unloaded


@dataclass(slots=True)
class ModelBooks:
    """One model, as the catalog keeps it."""

    name: str
    rules: Rules
    state: ModelState = ModelState.UNLOADED
    need: int | None = None  # bytes it takes once loaded; None = not estimated yet
    held: int = 0  # bytes that are its own now
    users: int = 0  # requests that run
    last_used: float = 0.0
    yields: bool = False  # takes no new requests: another one has waited long enough for its place
    leaving: bool = False  # is to be unloaded, by command
    is_changing: bool = False  # a load, an unload, a sleep is under way

    @property
    def is_free(self) -> bool:
        """Could go at once."""
        return self.state in HOLDING and not self.users and not self.is_changing and not self.rules.pinned


@dataclass(slots=True)
class Wanted:
    """A model that is not in memory and that requests wait for."""

    books: ModelBooks
    waited: float  # seconds, of the request that came first


@dataclass(slots=True)
class ResidencyPlan:
    load: list[ModelBooks] = field(default_factory=list)  # there is room for these now
    leave: list[ModelBooks] = field(default_factory=list)  # idle, and in the way
    hopeless: list[ModelBooks] = field(default_factory=list)  # would not fit if all others went that may
    yields: list[ModelBooks] = field(default_factory=list)  # busy, and in the way for too long


def make_plan(wanted: Sequence[Wanted], everyone: Iterable[ModelBooks], budget: int) -> ResidencyPlan:
    """wanted: the one that waited longest first; each has its need"""
    room = _Room(list(everyone), budget)
    plan = ResidencyPlan()
    for each in wanted:
        room.give(each, plan)
    room.trim(plan)
    return plan


def movable(budget: int, everyone: Iterable[ModelBooks]) -> int:
    """Bytes that are not held by pinned models."""
    return budget - sum(each.held for each in everyone if each.rules.pinned)


class _Room:
    def __init__(self, everyone: list[ModelBooks], budget: int) -> None:
        self._everyone = everyone
        self._budget = budget
        self._now = budget - sum(each.held for each in everyone)  # free
        self._later = self._now + sum(each.held for each in everyone if each.state is ModelState.UNLOADING)
        self._chosen: list[ModelBooks] = []  # to go

    def give(self, wanted: Wanted, plan: ResidencyPlan) -> None:
        books = wanted.books
        more = (books.need or 0) - books.held  # one that sleeps holds something
        others = [each for each in self._everyone if each is not books]
        if (books.need or 0) > movable(self._budget, others):
            plan.hopeless.append(books)
        elif more <= self._now and more <= self._later:
            self._now -= more
            self._later -= more
            plan.load.append(books)
        else:
            self._make_room(more, wanted, plan)

    def _make_room(self, more: int, wanted: Wanted, plan: ResidencyPlan) -> None:
        """What is promised to one is not given to those that came after it. One for which all others are not enough
        waits until what is being loaded can go, too."""
        chosen: list[ModelBooks] = []
        for each in self._in_order(wanted.books):
            if more <= self._later + sum(one.held for one in chosen):
                break
            chosen.append(each)
        later = self._later + sum(one.held for one in chosen) - more
        if later < 0:
            return
        self._later = later
        self._chosen += chosen
        plan.leave += [each for each in chosen if not each.users]
        if wanted.waited >= PATIENCE_S:
            plan.yields += [each for each in chosen if each.users]

    def _in_order(self, wanted: ModelBooks) -> list[ModelBooks]:
        """Who may go, first those that should."""
        found = [
            each
            for each in self._everyone
            if each.state in HOLDING
            and not (each.rules.pinned or each.is_changing or each is wanted or each in self._chosen)
        ]
        return sorted(found, key=lambda each: (each.users > 0, each.last_used))

    def trim(self, plan: ResidencyPlan) -> None:
        """Models that turned out larger than they were estimated push out idle ones, but for the newest."""
        stays = [each for each in self._everyone if each.state is not ModelState.UNLOADING and each not in self._chosen]
        comes = sum((each.need or 0) - each.held for each in plan.load)
        over = sum(each.held for each in stays) + comes - self._budget
        idle = sorted((each for each in self._everyone if each.is_free), key=lambda each: each.last_used)
        for each in idle[:-1]:
            if over <= 0:
                return
            if each not in self._chosen:
                plan.leave.append(each)
                over -= each.held
