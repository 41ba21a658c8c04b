"""Warm-up before users come: kernels are compiled and forwards recorded on the dummy row, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cadence.core.sampling_params import SamplingParams
from cadence.kernels.interface.attention_batch import LARGE_RUN, LONG
from cadence.runner.limits import RunnerLimits
from cadence.runner.loop import ForwardLoop
from cadence.runner.profile import largest_step
from cadence.runner.shapes import PROMPT_SIZES

RunPlan = Callable[[list[int], SamplingParams, int], None]
# (new tokens of each sequence, what all of them sample, tokens before these)

_DRAWS = SamplingParams(temperature=0.0)
_FILTERS = SamplingParams(temperature=0.8, top_p=0.9)
_TOP_K = SamplingParams(temperature=0.8, top_k=50, min_p=0.05)
_LOGPROBS = SamplingParams(temperature=0.0, logprobs=5)


@dataclass(frozen=True, slots=True)
class WarmupPiece:
    urgent: bool  # before the engine calls itself ready; the others when it is idle
    run: Callable[[], None]


def warmup_pieces(run_plan: RunPlan, loop: ForwardLoop, limits: RunnerLimits) -> list[WarmupPiece]:
    """Nothing where nothing is recorded beforehand: there a first time costs no more than a second."""
    wanted = loop.wanted()
    if not wanted.first:
        return []
    pieces = [WarmupPiece(True, partial(loop.prepare, shape)) for shape in wanted.first]
    for sampling in (_DRAWS, _FILTERS, _TOP_K, _LOGPROBS):
        for rows in (1, 8):
            pieces.append(WarmupPiece(True, partial(run_plan, [1] * min(rows, limits.max_num_seqs), sampling, 0)))
    for counts in mixed_steps(limits):
        pieces.append(WarmupPiece(True, partial(run_plan, counts, _DRAWS, 0)))
    for count, before in long_steps(limits):
        pieces.append(WarmupPiece(False, partial(run_plan, [count], _DRAWS, before)))
    return pieces + [WarmupPiece(False, partial(loop.prepare, shape)) for shape in wanted.later]


def mixed_steps(limits: RunnerLimits) -> list[list[int]]:
    """Steps with prompts, as the new tokens of each sequence: one prompt alone, of each recorded size and of more;
    several; and some beside rows that decode."""
    alone = [[size] for size in (*PROMPT_SIZES, 700, 2048)]
    largest = largest_step(limits.max_num_tokens, limits.max_model_len, limits.max_num_seqs, limits.width)
    several = [[40] * 4, [40] * 20, [300] * 8, largest]
    beside = [[1] * rows + [600] for rows in (1, 2, 3, 5, 8, 16, 32, 64, 128, 256)]
    short = [[1] * 8 + [4], [1] * 8 + [4] * 20]  # what a cached prefix leaves of a prompt
    return [
        counts
        for counts in (*alone, *several, *beside, *short)
        if sum(counts) <= limits.max_num_tokens
        and len(counts) <= limits.max_num_seqs
        and max(counts) <= limits.max_model_len
    ]


def long_steps(limits: RunnerLimits) -> list[tuple[int, int]]:
    """Later parts of long prompts, as (new tokens, tokens before): what multiplies long runs is made when first met."""
    count = min(limits.max_num_tokens, LARGE_RUN) // LONG * LONG
    before = [LARGE_RUN * times for times in (1, 2)]
    return [(count, each) for each in before if count and count + each <= limits.max_model_len]
