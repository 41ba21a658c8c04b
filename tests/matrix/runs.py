"""Each engine of the matrix is run once; its cells read what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cadence.engine.llm_engine import LLMEngine
from tests.matrix.compare import begins_alike, difference, search_difference
from tests.matrix.engine import Session, Trace, open_engine
from tests.matrix.features import ABORT, BEAM, FEATURES, GRAPHS, PLAIN, PREFIX
from tests.matrix.work import Batch, batches

SHARE = 3  # an engine with two features runs one in SHARE of the requests with two ...
SMALL = 10  # ... unless a batch has no more of them than this


@dataclass(frozen=True)
class Run:
    """All batches on one engine, which is idle now: once, or twice where the second round finds the first one's
    prefixes."""

    engine: LLMEngine
    trace: Trace
    rounds: list[Session]


class Matrix:
    """The runs on one model. Point: the features of an engine, () for the plain one."""

    def __init__(self, family: str, directory: Path) -> None:
        self.family = family
        self._directory = directory
        self.run = cache(self._run)

    @cached_property
    def wanted(self) -> Session:
        """What the plain engine gives."""
        return self.run(()).rounds[0]

    def faults(self, point: tuple[str, ...], features: frozenset[str] = frozenset()) -> list[str]:
        """What differs on an engine, of requests that have all of `features`."""
        found = []
        for number, one in enumerate(self.run(point).rounds):
            where = f"{self.family}, engine with {' x '.join(point)}" + (", warm" if number else "")
            found += [f"{where}: {text}" for text in self._differences(one, features)]
        return found

    def _differences(self, one: Session, features: frozenset[str]) -> list[str]:
        found = []
        for request_id, output in one.outputs.items():
            if not features <= features_of(request_id):
                continue
            compare = begins_alike if request_id in one.aborted else difference
            told = compare(output, self.wanted.outputs[request_id])
            found += [f"{request_id}: {told}"] if told else []
        if features <= {BEAM.name}:
            told = search_difference(one.searches[BEAM.name], self.wanted.searches[BEAM.name])
            found += [f"{BEAM.name}: {told}"] if told else []
        return found

    def _run(self, point: tuple[str, ...]) -> Run:
        options: dict[str, Any] = dict(PLAIN)
        for name in point:
            options |= FEATURES[name].options
        # The plain engine launches op by op; others record their forwards as a CPU does, or as a GPU where asked.
        graphs = "padded" if GRAPHS.name in point else "exact" if point else "none"
        engine, trace = open_engine(self._directory, options, graphs)
        rounds = []
        for number in range(2 if PREFIX.name in point else 1):
            session = Session(engine, trace, ABORT.name in point)
            for batch in _chosen(point, number):
                session.run(batch)
            rounds.append(session)
        return Run(engine, trace, rounds)


def features_of(request_id: str) -> frozenset[str]:
    """Of a request of any batch; none of a victim."""
    return _features()[request_id]


@cache
def _features() -> dict[str, frozenset[str]]:
    return {
        request_id: request.features
        for batch in batches()
        for request_id, request in {**batch.requests, **batch.victims}.items()
    }


def _chosen(point: tuple[str, ...], number: int) -> list[Batch]:
    """In an order of its own, except for the plain engine; the order must not matter."""
    if not point:
        return batches()
    rng = random.Random(f"{point} {number}")
    chosen = []
    for batch in batches():
        pairs = [request_id for request_id, request in batch.requests.items() if len(request.features) > 1]
        sampled = len(point) > 1 and len(pairs) > SMALL
        left_out = set(rng.sample(pairs, len(pairs) - len(pairs) // SHARE) if sampled else ())
        kept = [request_id for request_id in batch.requests if request_id not in left_out]
        rng.shuffle(kept)
        chosen.append(replace(batch, requests={request_id: batch.requests[request_id] for request_id in kept}))
    return chosen


MatrixOf = Callable[[str], Matrix]
