"""Engines of the matrix: built as users build them, watched where messages go down and come up, all as bytes."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cadence import RequestOutput
from cadence.config.args import EngineArgs
from cadence.core.adapter import ADAPTERS, NO_SLOT
from cadence.core.contract.codec import (
    answer_of,
    answer_to,
    call_of,
    decode_answer,
    decode_call,
    decode_mail,
    decode_plan,
    decode_result,
    encode,
    encode_mail,
    encode_plan,
    encode_result,
    payload_of,
)
from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.engine_state import EngineStats
from cadence.core.contract.step import NO_PLAN, Mail, StepPlan, StepResult
from cadence.core.grammar import GRAMMAR
from cadence.core.lora_request import LoRARequest
from cadence.core.outputs import BeamSearchOutput
from cadence.core.sampling_params import SamplingParams
from cadence.device.base import Graph, Output
from cadence.device.cpu import CpuDevice
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.text.beam import BeamSearch, LiveBeam, run_rounds
from cadence.executor.factory import ExecutorFactory, OpenExecutor, Processors, Resolve, device_caps, open_on
from cadence.executor.interface.base import Executor
from tests.helpers.threaded_ranks import open_ranks
from tests.matrix.features import ITSELF
from tests.matrix.work import Batch

VICTIM_TOKENS = 3  # a victim is aborted once it has that many, in mid-burst where there are bursts ...
LATEST = 7  # ... or once it has so many
SLEEPS = {3: 1, 6: 2, 11: 1, 17: 2}  # levels, by the steps after which an engine sleeps
NO_ADAPTERS: Mapping[str, LoRARequest] = {}
AWAKE: Mapping[int, int] = {}
MOST_STEPS = 2_000  # of one session, that compute: more means without end


class Trace:
    """What an engine truly did."""

    def __init__(self) -> None:
        self.longest_burst = 0  # forwards of one plan
        self.largest_part = 0  # forwards whose tokens came in one piece
        self.bursts: Counter[str] = Counter()  # by request id: plans of several forwards in which it sampled
        self.decoded: Counter[str] = Counter()  # by request id: plans in which it sampled since it last met a prompt
        self.chunks: Counter[str] = Counter()  # by request id: plans that computed a part of its prompt
        self.overlaps = 0  # plans that went down before the one before them had come up
        self.apart = 0  # of these, plans of other rows than the one before them
        self.calls: Counter[str] = Counter()  # by verb
        self.forwards = 0  # that were asked for
        self.forwards_before: dict[str, int] = {}  # by request id: how many there were when a plan first had it
        self.masks: Counter[str] = Counter()  # by request id: choices among tokens that the host named
        self.slots: set[frozenset[int]] = set()  # adapter slots of the rows of one plan, of each that there was
        self.cache_dtype = ""
        self.captures = 0
        self.replays = 0
        self.newest = NO_PLAN
        self._queued = 0  # forwards that were asked for, and have not come up
        self._returned = 0  # forwards of the newest plan that have come up
        self._ids: dict[int, str] = {}  # by row
        self._slots: dict[int, int] = {}  # by row

    def plan_went_down(self, plan: StepPlan) -> None:
        self.overlaps += self._queued > 0
        self.apart += self._queued > 0 and not set(plan.rows_np.tolist()) & set(self.newest.rows_np.tolist())
        self.newest, self._returned = plan, 0
        self.longest_burst = max(self.longest_burst, plan.num_forwards)
        for new in plan.begun:
            self._ids[new.row] = _user_id(new.request_id)
            self._slots[new.row] = new.payloads.get(ADAPTERS, NO_SLOT)
            self.forwards_before.setdefault(new.request_id, self.forwards)
        self.slots.add(frozenset(self._slots[row] for row in plan.rows_np.tolist()))
        prompts = (plan.num_tokens_np != plan.num_samples_np).any()
        for row, samples in zip(plan.rows_np.tolist(), (plan.num_samples_np > 0).tolist(), strict=True):
            self.decoded[self._ids[row]] = 0 if prompts else self.decoded[self._ids[row]] + samples
            self.bursts[self._ids[row]] += samples and plan.num_forwards > 1
            self.chunks[self._ids[row]] += not samples

    def mail_went_down(self, mail: Mail) -> None:
        for row in mail[GRAMMAR].rows_np.tolist():
            self.masks[self._ids[row]] += 1

    def forwards_were_asked_for(self, count: int) -> None:
        self._queued += count
        self.forwards += count

    def part_came_up(self, result: StepResult) -> None:
        count = len(result.token_ids_np)
        self.largest_part = max(self.largest_part, count)
        self._queued -= count
        self._returned += count if result.step_id == self.newest.step_id else 0

    @property
    def mid_burst(self) -> bool:
        """The newest plan has several forwards, not all of which have come up."""
        return self._returned < self.newest.num_forwards > 1


class WatchedGraph:
    def __init__(self, graph: Graph, trace: Trace) -> None:
        self._graph = graph
        self._trace = trace

    def replay(self, work: Callable[[], Any]) -> Any:
        self._trace.replays += 1
        return self._graph.replay(work)


class WatchedDevice(CpuDevice):
    """One thread is enough for models this small."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(num_threads=1)
        self._trace = trace

    def record(self, work: Callable[[], Output]) -> tuple[Graph[Output], Output]:
        self._trace.captures += 1
        graph, output = super().record(work)
        return WatchedGraph(graph, self._trace), output


class WatchedExecutor:
    """Sends every message through the codec, as if the other executor were in another process."""

    def __init__(self, executor: Executor, trace: Trace) -> None:
        self._executor = executor
        self._trace = trace

    def step(self, plan: StepPlan) -> None:
        self._trace.plan_went_down(plan)
        self._executor.step(_through_the_codec(plan))

    def advance(self, step_id: int, first: int, count: int) -> None:
        self._trace.forwards_were_asked_for(count)
        self._executor.advance(step_id, first, count)

    def post(self, step_id: int, mail: Mail) -> None:
        self._trace.mail_went_down(mail)
        self._executor.post(step_id, decode_mail(encode_mail(mail)))

    def result(self) -> StepResult:
        result = decode_result(encode_result(self._executor.result()))
        self._trace.part_came_up(result)
        return result

    def call(self, verb: Verb[P, A], payload: P) -> A:
        call = decode_call(encode(call_of(verb, payload)))
        answer = self._executor.call(verb, payload_of(verb, call))
        self._trace.calls[verb.name] += 1
        return answer_of(verb, decode_answer(encode(answer_to(call, answer))))

    def check(self) -> None:
        self._executor.check()

    def busy_seconds(self) -> list[float]:
        return self._executor.busy_seconds()

    def stop(self) -> None:
        self._executor.stop()


def _through_the_codec(plan: StepPlan) -> StepPlan:
    """As another process would get it. Python functions stay where they are: such rows are sent by none."""
    if any(new.sampling.logits_processors for new in plan.begun):
        return plan
    return decode_plan(encode_plan(plan))


def watching(graphs: str) -> tuple[ExecutorFactory, Trace]:
    """graphs: "padded" as on a GPU, "exact" as on a CPU, or "none"."""
    trace = Trace()

    def open_watched(kind: str, resolve: Resolve, logits_processors: Processors) -> OpenExecutor:
        config = resolve(device_caps(kind))
        config = dataclasses.replace(config, device=dataclasses.replace(config.device, graphs=graphs))
        trace.cache_dtype = config.cache.dtype
        if config.parallel.has_workers:
            opened = open_ranks(lambda: WatchedDevice(trace), config, logits_processors)
        else:
            opened = open_on(WatchedDevice(trace), config, logits_processors)
        queues_work = opened.queues_work or graphs == "padded"  # a GPU is asked for all forwards at once
        return dataclasses.replace(opened, executor=WatchedExecutor(opened.executor, trace), queues_work=queues_work)

    return open_watched, trace


def open_engine(directory: Path, options: dict[str, Any], graphs: str) -> tuple[LLMEngine, Trace]:
    new_executor, trace = watching(graphs)
    processors = options.get("logits_processors", ())
    fields = {name: value for name, value in options.items() if name != "logits_processors"}
    if "speculative_config" in fields:
        named = {
            key: str(directory) if value == ITSELF else value for key, value in fields["speculative_config"].items()
        }
        fields["speculative_config"] = named
    args = EngineArgs.from_options(model=str(directory), **fields)
    return LLMEngine.from_engine_args(args, logits_processors=processors, new_executor=new_executor), trace


def stats_of(engine: LLMEngine) -> EngineStats:
    return engine._core.stats()


class Session:
    """Requests, searches and aborts on one engine, all under way at once."""

    def __init__(
        self,
        engine: LLMEngine,
        trace: Trace,
        aborts: bool,
        adapters: Mapping[str, LoRARequest] = NO_ADAPTERS,
        prompt_of: Callable[[list[int]], Any] = list,
        sleeps: Mapping[int, int] = AWAKE,
    ) -> None:
        """adapters: by the feature that they are; prompt_of: what a request of some tokens is given as; sleeps: levels,
        by the steps after which the engine sleeps for a moment"""
        self.engine = engine
        self.trace = trace
        self.outputs: dict[str, RequestOutput] = {}  # of all that have finished
        self.searches: dict[str, BeamSearchOutput] = {}
        self.aborted: dict[str, bool] = {}  # by id: whether a burst was under way
        self.others_left = 0  # requests that went on when the last abort came
        self._aborts = aborts
        self._adapters = adapters
        self._prompt_of = prompt_of
        self._sleeps = dict(sleeps)
        self._bursts = engine.config.scheduler.burst_steps > 1
        self._num_probes = self._num_steps = 0

    def run(self, batch: Batch) -> None:
        for request_id, request in {**batch.victims, **batch.requests}.items():
            adapter = self._adapter(request.features)
            self.engine.add_request(request_id, self._prompt_of(request.prompt), request.params, lora_request=adapter)
        for name, asked in batch.searches.items():
            search = BeamSearch(self.engine.config.model.max_model_len, self.engine.eos_token_ids, asked.params)
            probe = partial(self._probe, self._adapter(asked.features))
            self.searches[name] = run_rounds(search, [asked.prompt], probe)[0]
        while self.engine.has_unfinished_requests():
            self._step()

    def _sleep(self) -> None:
        if level := self._sleeps.pop(self._num_steps, 0):
            self.engine.sleep(level)
            self.engine.wake_up(["weights"])
            self.engine.wake_up(["kv_cache"])

    def _step(self) -> None:
        self._sleep()
        newest = self.trace.newest
        outputs = self.engine.step()
        self._num_steps += self.trace.newest is not newest  # others wait, for a grammar that another process compiles
        assert self._num_steps < MOST_STEPS, "requests do not come to an end"
        for output in outputs:
            if output.finished:
                self.outputs[output.request_id] = output
            elif self._aborts and self._due(output):
                self.aborted[output.request_id] = self.trace.mid_burst
                self.engine.abort_request(output.request_id)
                self.others_left = self.engine.get_num_unfinished_requests() - 1

    def _due(self, output: RequestOutput) -> bool:
        """Only victims show outputs before their end."""
        count = len(output.outputs[0].token_ids)
        if count < VICTIM_TOKENS or output.request_id in self.aborted:
            return False
        return self.trace.mid_burst or not self._bursts or count >= LATEST

    def _adapter(self, features: frozenset[str]) -> LoRARequest | None:
        return next((self._adapters[name] for name in features if name in self._adapters), None)

    def _probe(self, adapter: LoRARequest | None, beams: list[LiveBeam], params: SamplingParams) -> list[RequestOutput]:
        ids = [f"probe {self._num_probes + index}" for index in range(len(beams))]
        self._num_probes += len(ids)
        for request_id, beam in zip(ids, beams, strict=True):
            prompt = self._prompt_of(beam.tokens)
            self.engine.add_request(request_id, prompt, params, lora_request=adapter, cap_logprobs=False)
        while not self.outputs.keys() >= set(ids):
            self._step()
        return [self.outputs.pop(request_id) for request_id in ids]


def _user_id(request_id: str) -> str:
    """Of one of n completions, too."""
    return re.sub(r"^\d+_", "", request_id)
