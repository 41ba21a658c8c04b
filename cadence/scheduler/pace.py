"""How many prompt tokens a step has while streams wait for it: as many as fit into the time between two tokens."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from cadence.config.engine_config import SchedulerConfig
from cadence.core.contract.step import StepPlan
from cadence.scheduler.decode_times import DecodeTimes
from cadence.scheduler.prompt_cost import PromptCost

_MARGIN = 0.9  # share of the target that a step is planned to take: tokens have still to travel
_RECENT = 8  # measurements by which the estimate is corrected
_FIRST = 2  # the first prompts measured have so many times the floor
_GROWTH = 2  # no step has more than so many times the prompt tokens of the largest recent one
_CHANGED = 1.5  # errors from which on the machine is taken to have changed, and not the work
_FASTEST = 0.25  # least correction: a machine is taken to be at most four times as fast as it was
_BRIEF = 0.25  # of the target, for the prompts of tenants that keep themselves short


@dataclass(slots=True)
class PromptRoom:
    """What a step has left for prompt tokens. First come, first served: who gets less than asked for is the last."""

    tokens: int
    cost: PromptCost
    seconds: float = math.inf
    floor: int = 0  # tokens that are granted whatever they take
    block_size: int = 1
    brief_seconds: float = math.inf
    granted: int = 0  # tokens, so far
    is_brief: bool = False

    @property
    def is_paced(self) -> bool:
        return self.seconds < math.inf

    def grant(self, wanted: int, context: int) -> int:
        """Of `wanted` tokens of a prompt, of which `context` are computed, those that this step computes."""
        granted = max(min(wanted, self.tokens), 0)
        if self.is_paced:
            granted = min(granted, max(self.cost.tokens_within(self.seconds, context), self.floor))
            granted = self._aligned(granted, wanted, context)
            self.seconds -= self.cost.seconds(granted, granted * (context + granted / 2)) - self.cost.fixed
            self.floor -= granted
        self.tokens = self.tokens - granted if granted == wanted else 0
        self.granted += granted
        return granted

    def shorten(self) -> None:
        """What follows is of tenants that have had more than another. Beside its prompts they have none; where it has
        none, they keep the step short: it may ask at any time, and would wait for the end."""
        if not self.is_brief:
            self.is_brief = True
            self.seconds = min(self.seconds, self.brief_seconds)
            if self.granted:
                self.tokens = 0

    def _aligned(self, granted: int, wanted: int, context: int) -> int:
        """A prompt that goes on in a later step stops at the end of a block, if it reaches one."""
        beyond = (context + granted) % self.block_size
        return granted - beyond if granted < wanted and granted > beyond else granted


class PacePolicy:
    """Learns what steps take from what it is told of them, and knows no clock.

    A step with prompts is expected to take what its decodes and its prompt tokens cost, times a correction: the second
    largest error of the last few steps. So one slow launch changes nothing, two slow ones do at once, and that things
    have become faster is believed a few steps later.
    """

    def __init__(self, config: SchedulerConfig, block_size: int, decodes: DecodeTimes) -> None:
        self.is_on = config.max_inter_token_seconds > 0 and config.enable_chunked_prefill
        self._aim = _MARGIN * config.max_inter_token_seconds
        self._floor = config.min_prompt_tokens
        self._block_size = block_size
        self._decodes = decodes
        self._cost = PromptCost()
        self._errors: deque[float] = deque(maxlen=_RECENT)  # time taken / time expected
        self._sizes: deque[int] = deque(maxlen=_RECENT)  # prompt tokens

    def room(self, tokens: int) -> PromptRoom:
        """Of a step for which no stream waits."""
        return PromptRoom(tokens, self._cost)

    def paced_room(self, tokens: int, num_decodes: int) -> PromptRoom:
        """Of a step in which so many rows decode, some of them for readers who wait, or which a tenant may wait for."""
        seconds = self._aim / self._correction() - self._decodes.estimate(num_decodes) - self._cost.fixed
        most = max(_FIRST * self._floor, _GROWTH * max(self._sizes, default=0))
        floor = self._floor if self._cost.is_known else most
        brief = _BRIEF * self._aim / self._correction()
        return PromptRoom(min(tokens, most), self._cost, max(seconds, 0.0), floor, self._block_size, brief)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A plan with prompts took `seconds`."""
        prompts_np = plan.num_tokens_np > np.maximum(plan.num_samples_np, 1)
        tokens_np = plan.num_tokens_np[prompts_np].astype(np.float64)
        if not (self.is_on and len(tokens_np) and seconds > 0):
            return
        tokens = float(tokens_np.sum())
        pairs = float((tokens_np * (plan.num_computed_np[prompts_np] + tokens_np / 2)).sum())
        num_decodes = len(plan.rows_np) - len(tokens_np)
        if plan.num_forwards > 1:  # the first forward had the prompts
            seconds = max(seconds - (plan.num_forwards - 1) * self._decodes.estimate(len(plan.rows_np)), seconds / 2)
        self._decodes.bound(num_decodes, seconds)
        rest = self._decodes.estimate(num_decodes)
        if self._cost.is_known:
            self._errors.append(seconds / max(rest + self._cost.seconds(tokens, pairs), 1e-9))
            self._follow()
        self._sizes.append(int(tokens))
        self._cost.observe(tokens, pairs, seconds, rest)

    def _follow(self) -> None:
        """Where three of the last four steps agree that the machine has become slower, or faster, all costs have."""
        if len(self._errors) < 4:
            return
        _, at_least, at_most, _ = sorted(list(self._errors)[-4:])  # what three of four are
        factor = at_least if at_least > 1 else at_most
        if max(factor, 1 / factor) > _CHANGED:
            self._cost.rescale(factor)
            self._errors = deque([error / factor for error in self._errors], maxlen=_RECENT)

    def _correction(self) -> float:
        if len(self._errors) < _RECENT // 2:
            return max([1.0, *self._errors])
        return max(sorted(self._errors)[-2], _FASTEST)
