"""The requests of the matrix: one for each request feature and one for each two that go together."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

from cadence import SamplingParams
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind
from tests.matrix import features
from tests.matrix.features import BEAM, GREEDY, MIN_TOKENS, ON_HOST, ONE_OR_OTHER, ONE_TOKEN, REQUEST, Feature

MAX_TOKENS = 10
_DRAWS = (GREEDY, features.SEEDED, features.SEVERAL, features.STOP, ONE_TOKEN)  # nothing but a draw on the device


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    params: SamplingParams
    features: frozenset[str]


@dataclass(frozen=True)
class Batch:
    """Requests that arrive together."""

    requests: dict[str, Request]  # by id
    victims: dict[str, Request]  # to be aborted where that is the feature; they run to their end elsewhere
    beams: dict[str, tuple[list[int], BeamSearchParams]] = field(default_factory=dict)


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
    draws = {feature.name for feature in _DRAWS}
    first = {key: request for key, request in made.items() if request.features <= draws}
    third = {key: request for key, request in made.items() if ON_HOST.name in request.features}
    third |= {f"{key} beside a search": request for key, request in made.items() if len(request.features) == 1}
    second = {key: request for key, request in made.items() if key not in first and key not in third}
    search = {BEAM.name: (prompts()[1], BeamSearchParams(beam_width=3, max_tokens=4))}
    return [
        Batch(first, _victims("drawing", max_tokens=18)),
        Batch(second, _victims("asking", max_tokens=12, repetition_penalty=1.2, logprobs=1)),
        Batch(third, _victims("watching", max_tokens=12, top_k=30), search),
    ]


def twin(request: Request) -> Request:
    """The same prompt and seed without any feature."""
    params = SamplingParams(**{"seed": request.params.seed, **_merged(())})
    return Request(request.prompt, params, frozenset())


def _requests() -> dict[str, Request]:
    alone = [(feature,) for feature in REQUEST if feature is not BEAM]
    pairs: list[tuple[Feature, ...]] = [
        pair for pair in combinations(REQUEST, 2) if (pair[0].name, pair[1].name) not in ONE_OR_OTHER
    ]
    texts = prompts()
    made = {}
    for index, chosen in enumerate([*alone, *pairs]):
        name = " x ".join(feature.name for feature in chosen)
        params = SamplingParams(**{"seed": 1000 + index, **_merged(chosen)})
        made[name] = Request(texts[index % len(texts)], params, frozenset(feature.name for feature in chosen))
    return made


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
