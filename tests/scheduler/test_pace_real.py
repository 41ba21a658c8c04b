"""A long prompt beside a running stream, on the real model."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from cadence import SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.llm_engine import LLMEngine

pytestmark = pytest.mark.engine

PROMPT = 2000
OPTIONS = {"max_model_len": 2304, "max_num_seqs": 4, "enable_prefix_caching": False, "use_tqdm_on_load": False}


def stream_beside_a_long_prompt(**options: float) -> tuple[dict[str, list[int]], list[float]]:
    """-> the tokens of both, and the gaps of the stream while the other's prompt is computed"""
    engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2", **OPTIONS, **options))
    draw = random.Random(7)
    tokens: dict[str, list[int]] = {"stream": [], "long": []}
    arrivals: list[float] = []

    def add(name: str, length: int, max_tokens: int) -> None:
        prompt = {"prompt_token_ids": [draw.randrange(100, 48_000) for _ in range(length)]}
        kind = RequestOutputKind.DELTA
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, output_kind=kind)
        engine.add_request(name, prompt, params)

    add("stream", 20, 200)
    while engine.has_unfinished_requests() and len(tokens["long"]) < 3:
        for output in engine.step():
            tokens[output.request_id].extend(output.outputs[0].token_ids)
            if output.request_id == "stream":
                arrivals.append(time.perf_counter())
                if len(arrivals) == 20:
                    add("long", PROMPT, 3)
    return tokens, [after - before for before, after in pairwise(arrivals[19:])]


def test_a_stream_goes_on_while_a_long_prompt_is_computed() -> None:
    """Times are those of a busy machine: what is compared are the two settings, with room."""
    tokens, gaps = stream_beside_a_long_prompt()
    tokens_without, gaps_without = stream_beside_a_long_prompt(max_inter_token_ms=0)
    assert tokens["long"] == tokens_without["long"]
    shared = min(len(found["stream"]) for found in (tokens, tokens_without))
    assert shared >= 21 and tokens["stream"][:shared] == tokens_without["stream"][:shared]
    assert len(gaps) >= 4, "the prompt was computed in several steps"
    assert max(gaps) < max(gaps_without) / 2
