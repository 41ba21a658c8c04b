"""Engines of the matrix and what came of them, held to the plain engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from cadence.core.contract.engine_state import EngineStats
from cadence.core.lora_request import LoRARequest
from cadence.engine.llm_engine import LLMEngine
from tests.matrix.compare import begins_alike, difference, search_difference
from tests.matrix.compiled_grammars import CompiledGrammars
from tests.matrix.engine import AWAKE, SLEEPS, Session, Trace, open_engine, stats_of
from tests.matrix.families import lacking, prompt_of
from tests.matrix.features import (
    ABORT,
    CACHES,
    FEATURES,
    FOR_ADAPTERS,
    GRAPHS,
    PLAIN,
    PREEMPTION,
    PREFIX,
    SLEEP,
    SPECULATION,
)
from tests.matrix.points import ALONE, MANY, PAIRS, Point
from tests.matrix.work import Batch, adapter_batches, batches

ONE_RANK: Mapping[str, int] = {}
SHARE = 5  # an engine runs one in SHARE of the requests with two features, the next one the next of them
WHOLE: list[Point] = [(SPECULATION.name,)]  # engines that always run all requests: few look up long drafts
ROUNDS: dict[Point, int] = {(PREEMPTION.name,): 3}  # each order preempts other requests
_ORDER = {point: number for number, point in enumerate([*ALONE, *MANY, *PAIRS])}


@dataclass(frozen=True)
class Run:
    """All batches on one engine: in one round, or in two where the second finds the first one's prefixes."""

    stats: EngineStats  # at the end, when it was idle
    trace: Trace
    rounds: list[Session]
    batches: list[list[Batch]]  # of each round
    with_adapters: bool


@dataclass(frozen=True)
class Fault:
    """A request or a search that did not get what the plain engine gives."""

    where: str
    features: frozenset[str]  # of the request
    text: str


class Matrix:
    """The runs on one model. Point: the features of an engine. Requests with adapters have engines of their own; all
    other engines know of none."""

    def __init__(
        self,
        family: str,
        directory: Path,
        adapters: Mapping[str, LoRARequest],
        grammars: CompiledGrammars,
        sizes: Mapping[str, int] = ONE_RANK,
    ) -> None:
        """adapters: by the feature that they are; sizes: over how many ranks every engine runs"""
        self.family = family
        self.adapters = adapters
        self.grammars = grammars
        self._sizes = sizes
        self._directory = directory
        self._wanted = cache(self._run_wanted)

    def wanted(self, with_adapters: bool = False, caches: Point = ()) -> Session:
        """What the plain engine gives, with the type of cache that is named. All requests, in their own order: what
        stands in which row, beside which others, is not what it is on an engine that is held to it."""
        return self._wanted(with_adapters, caches)

    def _run_wanted(self, with_adapters: bool, caches: Point) -> Session:
        return self.plain(adapter_batches() if with_adapters else batches(), with_adapters, caches)

    def plain(self, asked: list[Batch], with_adapters: bool = False, caches: Point = ()) -> Session:
        """On a plain engine of their own."""
        engine, trace = self._open(caches, with_adapters, plain=True)
        session = self._session(engine, trace, aborts=False)
        for batch in asked:
            session.run(served(batch, self.family))
        engine.shutdown()
        return session

    def run(self, point: Point, with_adapters: bool = False, whole: bool = False) -> Run:
        """whole: all requests, not this engine's share of those with two features"""
        asked = chosen(point, with_adapters, whole)
        rounds = [[served(batch, self.family) for batch in each] for each in asked]
        return self.run_rounds(point, rounds, with_adapters)

    def run_rounds(self, point: Point, rounds: list[list[Batch]], with_adapters: bool) -> Run:
        engine, trace = self._open(point, with_adapters, plain=False)
        sleeps = SLEEPS if SLEEP.name in point else AWAKE
        sessions = [self._session(engine, trace, ABORT.name in point, sleeps) for _ in rounds]
        for session, each in zip(sessions, rounds, strict=True):
            for batch in each:
                session.run(batch)
        stats = stats_of(engine)
        engine.shutdown()  # its threads and processes go: dozens of engines are not there at the same time
        return Run(stats, trace, sessions, rounds, with_adapters)

    def faults(self, run: Run, point: Point) -> list[Fault]:
        wanted = self.wanted(run.with_adapters, tuple(name for name in point if name in CACHES))
        return [
            Fault(f"round {number}, {name}", features, told)
            for number, session in enumerate(run.rounds, 1)
            for name, features, told in _differences(session, wanted)
        ]

    def _session(self, engine: LLMEngine, trace: Trace, aborts: bool, sleeps: Mapping[int, int] = AWAKE) -> Session:
        return Session(engine, trace, aborts, self.adapters, partial(prompt_of, self.family), sleeps)

    def _open(self, point: Point, with_adapters: bool, plain: bool) -> tuple[LLMEngine, Trace]:
        options: dict[str, Any] = {**PLAIN, **self._sizes, **(FOR_ADAPTERS if with_adapters else {})}
        for name in point:
            options |= FEATURES[name].options
        # The plain engine launches op by op; others record their forwards as a CPU does, or as a GPU where asked.
        graphs = "none" if plain else "padded" if GRAPHS.name in point else "exact"
        with self.grammars.used():
            return open_engine(self._directory, options, graphs)


def _differences(one: Session, wanted: Session) -> list[tuple[str, frozenset[str], str]]:
    """(its name, its features, what differs) of each request and search that does"""
    found = []
    for request_id, output in one.outputs.items():
        compare = begins_alike if request_id in one.aborted else difference
        found.append((request_id, features_of(request_id), compare(output, wanted.outputs[request_id])))
    for name, beams in one.searches.items():
        found.append((name, search_features(name), search_difference(beams, wanted.searches[name])))
    return [each for each in found if each[2]]


def features_of(request_id: str) -> frozenset[str]:
    """Of a request of any batch; none of a victim."""
    return _features()[request_id]


def search_features(name: str) -> frozenset[str]:
    return frozenset(name.split(" x "))


@cache
def _features() -> dict[str, frozenset[str]]:
    return {
        request_id: request.features
        for batch in [*batches(), *adapter_batches()]
        for request_id, request in {**batch.requests, **batch.victims}.items()
    }


def chosen(point: Point, with_adapters: bool = False, whole: bool = False) -> list[list[Batch]]:
    """What an engine runs, by round. Every request with one feature, and a share of those with two: the shares of
    SHARE engines that follow each other are all. Those with adapters are few, and all run. In an order of its own,
    which must not matter."""
    rounds = []
    for number in range(ROUNDS.get(point, 2 if PREFIX.name in point else 1)):
        rng = random.Random(f"{point} {number}")
        share = 1 if whole or with_adapters or point in WHOLE else SHARE
        every = adapter_batches() if with_adapters else batches()
        rounds.append([_sampled(batch, _ORDER.get(point, 0) + number, share, rng) for batch in every])
    return rounds


def served(batch: Batch, family: str) -> Batch:
    """Without requests for what the model cannot do."""
    kept = {key: one for key, one in batch.requests.items() if not one.features & lacking(family)}
    return replace(batch, requests=kept)


def _sampled(batch: Batch, first: int, share: int, rng: random.Random) -> Batch:
    pairs = [request_id for request_id, request in batch.requests.items() if len(request.features) > 1]
    kept = [request_id for request_id in batch.requests if request_id not in pairs] + pairs[first % share :: share]
    rng.shuffle(kept)
    return replace(batch, requests={request_id: batch.requests[request_id] for request_id in kept})


MatrixOf = Callable[[str], Matrix]
