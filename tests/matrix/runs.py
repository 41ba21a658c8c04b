"""Each engine of the matrix is run once; its cells read what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cadence.core.engine_state import EngineStats
from cadence.core.lora_request import LoRARequest
from cadence.engine.llm_engine import LLMEngine
from tests.matrix.compare import begins_alike, difference, search_difference
from tests.matrix.engine import Session, Trace, open_engine, stats_of
from tests.matrix.features import ABORT, ADAPTERS, CACHES, FEATURES, FOR_ADAPTERS, GRAPHS, PLAIN, PREFIX
from tests.matrix.work import Batch, adapter_batches, batches

ONE_RANK: Mapping[str, int] = {}
SHARE = 3  # an engine with two features, or of a sample, runs one in SHARE of the requests with two ...
SMALL = 10  # ... unless a batch has no more of them than this


@dataclass(frozen=True)
class Run:
    """All batches on one engine: once, or twice where the second round finds the first one's prefixes."""

    stats: EngineStats  # at the end, when it was idle
    trace: Trace
    rounds: list[Session]
    with_adapters: bool


class Matrix:
    """The runs on one model. Point: the features of an engine. Requests with adapters have engines of their own; all
    other engines know of none."""

    def __init__(
        self,
        family: str,
        directory: Path,
        adapters: Mapping[str, LoRARequest],
        sizes: Mapping[str, int] = ONE_RANK,
        is_sample: bool = False,
    ) -> None:
        """adapters: by the feature that they are; sizes: over how many ranks every engine runs; is_sample: engines with
        one feature do not run all requests"""
        self._sizes = sizes
        self._num_whole = 0 if is_sample else 1  # features of engines that run all requests
        self.family = family
        self.adapters = adapters
        self._directory = directory
        self._cached = cache(self._run)

    def run(self, point: tuple[str, ...], with_adapters: bool = False) -> Run:
        return self._cached(point, with_adapters, False)

    def wanted(self, with_adapters: bool = False, caches: tuple[str, ...] = ()) -> Session:
        """What the plain engine gives, with the type of cache that is named."""
        return self._cached(caches, with_adapters, True).rounds[0]

    def faults(self, point: tuple[str, ...], features: frozenset[str] = frozenset()) -> list[str]:
        """What differs on an engine, of requests that have all of `features`."""
        found, with_adapters = [], bool(features & ADAPTERS)
        wanted = self.wanted(with_adapters, tuple(name for name in point if name in CACHES))
        for number, one in enumerate(self.run(point, with_adapters).rounds):
            where = f"{self.family}, engine with {' x '.join(point)}" + (", warm" if number else "")
            found += [f"{where}: {text}" for text in _differences(one, wanted, features)]
        return found

    def plain(self, batch: Batch, with_adapters: bool = False) -> Session:
        """A batch on a plain engine of its own."""
        engine, trace = self._open((), with_adapters, True)
        session = Session(engine, trace, aborts=False)
        session.run(batch)
        engine.shutdown()
        return session

    def _open(self, point: tuple[str, ...], with_adapters: bool, plain: bool) -> tuple[LLMEngine, Trace]:
        options: dict[str, Any] = {**PLAIN, **self._sizes, **(FOR_ADAPTERS if with_adapters else {})}
        for name in point:
            options |= FEATURES[name].options
        # The plain engine launches op by op; others record their forwards as a CPU does, or as a GPU where asked.
        graphs = "none" if plain else "padded" if GRAPHS.name in point else "exact"
        return open_engine(self._directory, options, graphs)

    def _run(self, point: tuple[str, ...], with_adapters: bool, plain: bool) -> Run:
        engine, trace = self._open(point, with_adapters, plain)
        rounds = []
        for number in range(2 if PREFIX.name in point else 1):
            session = Session(engine, trace, ABORT.name in point, self.adapters)
            every = adapter_batches() if with_adapters else batches()
            samples = len(point) > self._num_whole
            for batch in every if plain else _chosen(point, number, every, samples):
                session.run(batch)
            rounds.append(session)
        stats = stats_of(engine)
        engine.shutdown()  # its threads and processes go: hundreds of engines are not there at the same time
        return Run(stats, trace, rounds, with_adapters)


def _differences(one: Session, wanted: Session, features: frozenset[str]) -> list[str]:
    found = []
    for request_id, output in one.outputs.items():
        if features <= features_of(request_id):
            compare = begins_alike if request_id in one.aborted else difference
            told = compare(output, wanted.outputs[request_id])
            found += [f"{request_id}: {told}"] if told else []
    for name, beams in one.searches.items():
        if features <= search_features(name):
            told = search_difference(beams, wanted.searches[name])
            found += [f"{name}: {told}"] if told else []
    return found


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


def _chosen(point: tuple[str, ...], number: int, all_batches: list[Batch], samples: bool) -> list[Batch]:
    """In an order of its own, which must not matter."""
    rng = random.Random(f"{point} {number}")
    chosen = []
    for batch in all_batches:
        pairs = [request_id for request_id, request in batch.requests.items() if len(request.features) > 1]
        sampled = samples and len(pairs) > SMALL
        left_out = set(rng.sample(pairs, len(pairs) - len(pairs) // SHARE) if sampled else ())
        kept = [request_id for request_id in batch.requests if request_id not in left_out]
        rng.shuffle(kept)
        chosen.append(replace(batch, requests={request_id: batch.requests[request_id] for request_id in kept}))
    return chosen


MatrixOf = Callable[[str], Matrix]
