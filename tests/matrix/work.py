"""The requests of the matrix: one for each request feature and one for each two that go together."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

from cadence import SamplingParams
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind
from tests.matrix import features
from tests.matrix.features import (
    ADAPTERS,
    BEAM,
    EMBEDDING,
    GREEDY,
    MIN_TOKENS,
    ON_HOST,
    ONE_OR_OTHER,
    ONE_TOKEN,
    REQUEST,
    Feature,
)

MAX_TOKENS = 10
_DRAWS = (GREEDY, features.SEEDED, features.SEVERAL, features.STOP, ONE_TOKEN)  # nothing but a draw on the device


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    params: SamplingParams | PoolingParams
    features: frozenset[str]


@dataclass(frozen=True)
class Search:
    prompt: list[int]
    params: BeamSearchParams
    features: frozenset[str]


@dataclass(frozen=True)
class Batch:
    """Requests that arrive together."""

    requests: dict[str, Request]  # by id
    victims: dict[str, Request]  # to be aborted where that is the feature; they run to their end elsewhere
    searches: dict[str, Search] = field(default_factory=dict)  # by name


def prompts() -> list[list[int]]:
    """Longer than a chunk; some grow past the sliding windows; two begin alike. The blocks of all are nearly full, so
    that what they get takes more."""
    rng = random.Random(5)
    made = [[rng.randrange(5, 320) for _ in range(length)] for length in (15, 16, 23, 24)]
    return [*made, made[3][:16] + made[0][:7]]


@cache
def batches() -> list[Batch]:
    """Those that only draw can be captured whole, and one host processor makes bursts 1: hence three batches."""
    made = _requests()
    beside = {f"{key} beside a search": request for key, request in made.items() if len(request.features) == 1}
    return _split(made, beside, {BEAM.name: _search()})


@cache
def adapter_batches() -> list[Batch]:
    """The same, of requests with one of two adapters, and some of the others between them."""
    alone = {key: request for key, request in _requests().items() if len(request.features) == 1}
    without = {f"{key} beside adapters": request for key, request in alone.items()}
    searches = {f"{BEAM.name} x {name}": _search(name) for name in sorted(ADAPTERS)}
    return _split({**without, **_adapter_requests()}, {}, searches)


def _split(made: dict[str, Request], beside: dict[str, Request], searches: dict[str, Search]) -> list[Batch]:
    """beside: runs with the searches"""
    draws = {feature.name for feature in _DRAWS} | ADAPTERS
    first = {key: request for key, request in made.items() if request.features <= draws}
    third = {key: request for key, request in made.items() if ON_HOST.name in request.features} | beside
    second = {key: request for key, request in made.items() if key not in first and key not in third}
    return [
        Batch(first, _victims("drawing", max_tokens=18)),
        Batch(second, _victims("asking", max_tokens=12, repetition_penalty=1.2, logprobs=1)),
        Batch(third, _victims("watching", max_tokens=12, top_k=30), searches),
    ]


def twin(request: Request) -> Request:
    """The same prompt and seed without any feature: a text."""
    params = SamplingParams(**{"seed": getattr(request.params, "seed", 0), **_merged(())})
    return Request(request.prompt, params, frozenset())


@cache
def _requests() -> dict[str, Request]:
    """One for each feature but adapters and searches, and one for each two that go together."""
    known = [feature for feature in REQUEST if feature.name not in ADAPTERS]
    alone = [(feature,) for feature in known if feature is not BEAM]
    pairs: list[tuple[Feature, ...]] = [
        pair for pair in combinations(known, 2) if (pair[0].name, pair[1].name) not in ONE_OR_OTHER
    ]
    return _numbered([*alone, *pairs], first=0)


def _adapter_requests() -> dict[str, Request]:
    adapters = [feature for feature in REQUEST if feature.name in ADAPTERS]
    others = [feature for feature in REQUEST if feature is not BEAM and feature not in adapters]
    alone = [(adapter,) for adapter in adapters]
    return _numbered([*alone, *((other, adapter) for other in others for adapter in adapters)], first=1000)


def _numbered(combined: list[tuple[Feature, ...]], first: int) -> dict[str, Request]:
    """Each has a seed of its own, and one of the prompts."""
    texts, made = prompts(), {}
    for index, chosen in enumerate(combined, first):
        name = " x ".join(feature.name for feature in chosen)
        sampling = SamplingParams(**{"seed": 1000 + index, **_merged(chosen)})
        params = PoolingParams() if EMBEDDING in chosen else sampling
        made[name] = Request(texts[index % len(texts)], params, frozenset(feature.name for feature in chosen))
    return made


def _search(*adapter: str) -> Search:
    return Search(prompts()[1], BeamSearchParams(beam_width=3, max_tokens=4), frozenset((BEAM.name, *adapter)))


def _merged(chosen: tuple[Feature, ...]) -> dict[str, Any]:
    """The options of several features in one request."""
    options: dict[str, Any] = {
        "temperature": 0.8,
        "max_tokens": MAX_TOKENS,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    for feature in chosen:
        options |= {key: value for key, value in feature.options.items() if key != "logits_processors"}
    if GREEDY in chosen:
        options |= GREEDY.options
    if ONE_TOKEN in chosen and MIN_TOKENS in chosen:
        options["min_tokens"] = 1
    processors = [function for feature in chosen for function in feature.options.get("logits_processors", ())]
    return options | ({"logits_processors": processors} if processors else {})


def _victims(name: str, **options: Any) -> dict[str, Request]:
    """Some that say at once what they got; those that only draw fill the longest bursts."""
    made = {}
    for index, prompt in enumerate(prompts()[:2]):
        params = SamplingParams(temperature=0.8, seed=index, ignore_eos=True, **options)
        made[f"victim {index}, {name}"] = Request(prompt, params, frozenset())
    return made
