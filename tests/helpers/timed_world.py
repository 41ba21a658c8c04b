"""The scheduler beside a device of which only the time is simulated: who gets a token when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import StepPlan
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_engine import make_cache, make_config, result_of
from tests.helpers.toy_model import make_layout, make_request

Seconds = Callable[[StepPlan], float]
BLOCK = 16


@dataclass(frozen=True)
class Costs:
    """Seconds of a step, as attention and products have them."""

    step: float = 0.0
    row: float = 0.0
    token: float = 0.0
    pair: float = 0.0  # a token and one it attends to

    def __call__(self, plan: StepPlan) -> float:
        tokens_np = plan.num_tokens_np.astype(np.float64)
        pairs = float((tokens_np * (plan.num_computed_np + tokens_np / 2)).sum())
        return self.step + self.row * len(tokens_np) + self.token * float(tokens_np.sum()) + self.pair * pairs

    def decodes(self, plan: StepPlan) -> float:
        """What the step would take without its prompts."""
        past_np = plan.num_computed_np[plan.num_tokens_np == 1]
        return self.step + (self.row + self.token) * len(past_np) + self.pair * float(past_np.sum())

    def floor_chunk(self, tokens: int, plan: StepPlan) -> float:
        """What the smallest chunk adds to a step, after the longest past of its prompts."""
        context = int(plan.num_computed_np[plan.num_tokens_np > 1].max(initial=0))
        return self.token * tokens + self.pair * tokens * (context + tokens / 2)


@dataclass
class Timeline:
    """What the reader of a request sees."""

    request: EngineRequest
    arrived: float
    token_times: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.token_times, self.token_times[1:], strict=False)]


@dataclass
class Step:
    plan: StepPlan
    launched: float
    seconds: float = 0.0
    prompt_tokens: int = 0


class TimedWorld:
    """Requests arrive at times of their own; a step takes what `seconds` says; the host takes no time."""

    def __init__(self, seconds: Seconds, target: float, floor: int = 16, max_model_len: int = 8192, **config: Any):
        fields = {"max_num_seqs": 64, "max_num_batched_tokens": 2048} | config
        self.config = make_config(max_inter_token_seconds=target, min_prompt_tokens=floor, **fields)
        num_blocks = 1 + self.config.max_num_seqs * max_model_len // BLOCK
        layout = make_layout((0,), BLOCK)
        self.scheduler = Scheduler(self.config, make_cache(BLOCK, False), layout, num_blocks, max_model_len)
        self.seconds = seconds
        self.clock = 0.0
        self.lines: dict[str, Timeline] = {}
        self.steps: list[Step] = []  # that have returned
        self._arrivals: deque[Timeline] = deque()
        self._in_flight: deque[Step] = deque()
        self._last_return = 0.0

    def arrive(self, time: float, prompt_len: int, max_tokens: int, streams: bool = True, **fields: Any) -> Timeline:
        """In the order of time. fields: more of the request"""
        kind = RequestOutputKind.DELTA if streams else RequestOutputKind.FINAL_ONLY
        sampling = SamplingParams(max_tokens=max_tokens, output_kind=kind)
        name = f"r{len(self.lines)}"
        request = make_request(name, [1] * prompt_len, max_tokens, params=sampling, **fields)
        self.lines[name] = line = Timeline(request, time)
        self._arrivals.append(line)
        return line

    def streams(self, name: str) -> bool:
        return self.lines[name].request.params.output_kind is RequestOutputKind.DELTA

    def prompt_len(self, name: str) -> int:
        return len(self.lines[name].request.prompt_token_ids)

    def run(self, max_steps: int = 100_000) -> None:
        """Until everybody has had all tokens."""
        for _ in range(max_steps):
            self._admit()
            if not (self._arrivals or self._in_flight or self.scheduler.has_unfinished()):
                return
            self._turn()
        raise AssertionError("no end in sight")

    def _admit(self) -> None:
        while self._arrivals and self._arrivals[0].arrived <= self.clock:
            self.scheduler.add(self._arrivals.popleft().request)

    def _turn(self) -> None:
        if len(self._in_flight) < self.config.steps_in_flight:
            plan = self.scheduler.schedule()
            if len(plan.rows_np):
                self._in_flight.append(Step(plan, self.clock))
                return
        if self._in_flight:
            self._return(self._in_flight.popleft())
        else:
            self.clock = max(self.clock, self._arrivals[0].arrived)

    def _return(self, step: Step) -> None:
        plan = step.plan
        step.seconds = self.seconds(plan)
        step.prompt_tokens = int(plan.num_tokens_np[plan.num_tokens_np > 1].sum())
        started = max(step.launched, self._last_return)
        self.clock = self._last_return = started + step.seconds
        for update in self.scheduler.update(result_of(plan)):
            line = self.lines[update.request_id]
            line.token_times.extend([self.clock] * len(update.new_token_ids))
            line.ended = update.finish_reason is not None
        self.scheduler.observe_time(plan, self.clock - started)
        self.steps.append(step)
