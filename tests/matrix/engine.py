"""Engines of the matrix: built as users build them, watched where plans go down and results come up."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from cadence import LLM, RequestOutput
from cadence.config.engine_config import EngineConfig
from cadence.core.outputs import BeamSearchOutput
from cadence.core.sampling_params import SamplingParams
from cadence.core.step import StepPlan, StepResult
from cadence.device.base import Graph
from cadence.engine import build
from cadence.engine.beam import BeamSearch, run_rounds
from cadence.engine.llm_engine import LLMEngine
from cadence.executor.base import Ticket
from cadence.executor.worker import Worker
from cadence.scheduler.stats import SchedulerStats
from tests.matrix.work import Batch

VICTIM_TOKENS = 3  # a victim is aborted once it has that many
MOST_STEPS = 2_000  # of one session: what waits longer waits forever


class Trace:
    """What an engine truly did."""

    def __init__(self) -> None:
        self.longest_burst = 0  # forwards of one plan
        self.largest_part = 0  # forwards whose tokens came in one piece
        self.bursts: Counter[str] = Counter()  # by request id: plans of several forwards in which it sampled
        self.chunks: Counter[str] = Counter()  # by request id: plans that computed a part of its prompt
        self.overlaps = 0  # plans that went down before the one before them had come up
        self.forwards = 0
        self.forwards_before: dict[str, int] = {}  # by request id: how many there were when a plan first had it
        self.captures = 0
        self.replays = 0
        self.in_flight: list[StepPlan] = []
        self._ids: dict[int, str] = {}  # by row

    def plan_went_down(self, plan: StepPlan) -> None:
        self.overlaps += bool(self.in_flight)
        self.in_flight.append(plan)
        self.longest_burst = max(self.longest_burst, plan.num_steps)
        for new in plan.begun:
            self._ids[new.row] = _user_id(new.request_id)
            self.forwards_before.setdefault(new.request_id, self.forwards)
        for row, samples in zip(plan.rows_np.tolist(), plan.samples_np.tolist(), strict=True):
            self.bursts[self._ids[row]] += samples and plan.num_steps > 1
            self.chunks[self._ids[row]] += not samples

    def part_came_up(self, result: StepResult) -> None:
        self.largest_part = max(self.largest_part, len(result.token_ids_np))
        if result.last:
            self.in_flight.pop(0)

    @property
    def mid_burst(self) -> bool:
        return any(plan.num_steps > 1 for plan in self.in_flight)


class WatchedTicket:
    def __init__(self, ticket: Ticket, trace: Trace) -> None:
        self._ticket = ticket
        self._trace = trace
        self.cut = ticket.cut

    def result(self) -> StepResult:
        result = self._ticket.result()
        self._trace.part_came_up(result)
        return result


class WatchedGraph:
    def __init__(self, graph: Graph, trace: Trace) -> None:
        self._graph = graph
        self._trace = trace

    def replay(self) -> torch.Tensor:
        self._trace.replays += 1
        return self._graph.replay()


class WatchedWorker(Worker):
    def __init__(self, config: EngineConfig, logits_processors: Sequence[Callable[..., Any]], trace: Trace) -> None:
        super().__init__(config, logits_processors)
        self.trace = trace
        self._capture = self._device.capture
        self._device.capture = self._watched_capture  # type: ignore[method-assign]
        model = self._runner._parts.model
        self._forward = model.forward
        model.forward = self._watched_forward  # type: ignore[method-assign, assignment]

    def step(self, plan: StepPlan) -> WatchedTicket:  # type: ignore[override]
        self.trace.plan_went_down(plan)
        return WatchedTicket(super().step(plan), self.trace)

    def _watched_forward(self, *args: Any) -> torch.Tensor:
        self.trace.forwards += 1
        return self._forward(*args)

    def _watched_capture(self, record: Callable[[], Any]) -> Graph:
        self.trace.captures += 1
        return WatchedGraph(self._capture(record), self.trace)


@contextmanager
def watched(graphs: str) -> Iterator[Trace]:
    """Engines built inside are watched. graphs: "padded" as on a GPU, "exact" as on a CPU, or "none"."""
    trace = Trace()

    def worker(config: EngineConfig, logits_processors: Sequence[Callable[..., Any]]) -> Worker:
        device = dataclasses.replace(config.device, graphs=graphs)
        return WatchedWorker(dataclasses.replace(config, device=device), logits_processors, trace)

    with patch.object(build, "Worker", worker):
        yield trace


def open_engine(directory: Path, options: dict[str, Any], graphs: str) -> tuple[LLMEngine, Trace]:
    with watched(graphs) as trace:
        return LLM(str(directory), **options).llm_engine, trace


def stats_of(engine: LLMEngine) -> SchedulerStats:
    return engine._core.stats()


class Session:
    """Requests, searches and aborts on one engine, all under way at once."""

    def __init__(self, engine: LLMEngine, trace: Trace, aborts: bool) -> None:
        self.engine = engine
        self.trace = trace
        self.outputs: dict[str, RequestOutput] = {}  # of all that have finished
        self.searches: dict[str, BeamSearchOutput] = {}
        self.aborted: dict[str, bool] = {}  # by id: whether a burst was under way
        self.others_left = 0  # requests that went on when the last abort came
        self._aborts = aborts
        self._bursts = engine.config.scheduler.burst_steps > 1
        self._num_probes = self._num_steps = 0

    def run(self, batch: Batch) -> None:
        for request_id, request in {**batch.victims, **batch.requests}.items():
            self.engine.add_request(request_id, request.prompt, request.params)
        for name, (prompt, params) in batch.beams.items():
            search = BeamSearch(self.engine.config.model.max_model_len, self.engine.eos_token_ids, params)
            self.searches[name] = run_rounds(search, [prompt], self._probe)[0]
        while self.engine.has_unfinished_requests():
            self._step()

    def _step(self) -> None:
        self._num_steps += 1
        assert self._num_steps < MOST_STEPS, "requests do not come to an end"
        for output in self.engine.step():
            if output.finished:
                self.outputs[output.request_id] = output
            elif self._aborts and self._due(output):
                self.aborted[output.request_id] = self.trace.mid_burst
                self.engine.abort_request(output.request_id)
                self.others_left = self.engine.get_num_unfinished_requests() - 1

    def _due(self, output: RequestOutput) -> bool:
        """Only victims show outputs before their end."""
        ready = len(output.outputs[0].token_ids) >= VICTIM_TOKENS and output.request_id not in self.aborted
        return ready and (self.trace.mid_burst or not self._bursts)

    def _probe(self, prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
        ids = [f"probe {self._num_probes + index}" for index in range(len(prompts))]
        self._num_probes += len(ids)
        for request_id, prompt in zip(ids, prompts, strict=True):
            self.engine.add_request(request_id, prompt, params, cap_logprobs=False)
        while not self.outputs.keys() >= set(ids):
            self._step()
        return [self.outputs.pop(request_id) for request_id in ids]


def _user_id(request_id: str) -> str:
    """Of one of n completions, too."""
    return re.sub(r"^\d+_", "", request_id)
