"""The synchronous engine: add requests, step, collect outputs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.sleep import check_can_sleep
from cadence.core.contract import control
from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.request import FinishReason
from cadence.core.contract.sleep import WeightsState, checked_level, checked_tags, only_held
from cadence.core.contract.update import AnyUpdate
from cadence.core.errors import ConfigError, EngineDeadError, InvalidRequestError
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.lora_request import checked_number, required_adapter
from cadence.core.outputs import RequestOutput
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.refusals import without_frames
from cadence.core.sampling_params import SamplingParams
from cadence.engine.any_core import AnyCore
from cadence.engine.build import EngineParts, build_engine
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.metrics.cache_info import cache_labels
from cadence.engine.metrics.metric import Metric, in_vectors
from cadence.engine.missing import missing_attribute
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor
from cadence.engine.text.logits_processors import ProcessorClasses, split_processors
from cadence.engine.text.output_processor import OutputProcessor
from cadence.engine.text.parallel_sampling import fan_out
from cadence.engine.text.pooled_options import PooledOptions
from cadence.engine.text.prompts import ParsedPrompt, parse_prompt, pinned
from cadence.engine.text.unused import UnusedOptions, check_keywords, name_start_keywords
from cadence.executor.factory import ExecutorFactory, open_executor
from cadence.text.tokenizer import Tokenizer


class LLMEngine:
    """A context manager: leaving it is `shutdown()`. So is its last reference going."""

    def __init__(self, parts: EngineParts, processors: Sequence[Any] = ()) -> None:
        """`processors`: logits processors of every request, as callables or as classes."""
        model, most_drafts = parts.config.model, parts.config.speculative.num_tokens
        limits = InputLimits.of(
            model,
            parts.vocab_size,
            parts.tokenizer,
            parts.config.structured,
            parts.config.lora.enabled,
            parts.config.parallel.data_parallel_size,
            parts.config.pooling,
        )
        self.eos_token_ids = limits.eos_token_ids
        self.config = parts.config
        self.num_blocks = parts.num_blocks
        self._running: AnyCore | None = parts.core  # None = shut down
        self._default_sampling = parts.default_sampling
        self._tokenizer = parts.tokenizer
        self._metrics = MetricsByEngine(
            model.files.name,
            cache_labels(parts.config.cache, parts.num_blocks),
            most_drafts,
            parts.config.lora.max_loras,
            parts.config.parallel.data_parallel_size,
        )
        self._inputs = InputProcessor(limits, parts.tokenizer)
        self._outputs = OutputProcessor(parts.tokenizer, self._metrics)
        classes, _ = split_processors(processors)
        self._processors = ProcessorClasses(classes, parts.config, parts.config.device.kind)
        self._unused = UnusedOptions(parts.config.scheduler.policy, bool(processors), most_drafts)
        self._sleeps = False  # something does

    @classmethod
    @without_frames
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        usage_context: object = None,
        *,
        logits_processors: Sequence[Any] = (),
        new_executor: ExecutorFactory = open_executor,
        **unused: object,
    ) -> LLMEngine:
        """What else vLLM takes here (a usage context, loggers of statistics) is accepted and named in the log."""
        name_start_keywords("LLMEngine.from_engine_args", {"usage_context": usage_context, **unused})
        _, functions = split_processors(logits_processors)
        if engine_args.data_parallel_size > 1:
            return cls(_build_several(engine_args, functions), logits_processors)
        parts = build_engine(engine_args, functions, offline=True, new_executor=new_executor)
        return cls(parts, logits_processors)

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams | AlignmentSpec,
        arrival_time: float | None = None,
        lora_request: object | None = None,
        *,
        priority: int = 0,
        cap_logprobs: bool = True,
        **extras: Any,
    ) -> None:
        """Accepts a request, or raises and leaves everything as it was."""
        core = self._core
        prompt = pinned(prompt, extras.pop("data_parallel_rank", None))
        extras = {"arrival_time": arrival_time, **extras}
        if isinstance(params, PoolingParams):
            self.add_pooled(request_id, prompt, self.pooled_options(params, priority, lora_request, extras))
            return
        hints = check_keywords("LLMEngine", extras)
        self._check_new(request_id)
        if isinstance(params, AlignmentSpec):
            processed = self._inputs.process_alignment(request_id, prompt, params, priority, lora_request)
        else:
            processed = self._inputs.process(request_id, prompt, params, priority, cap_logprobs, lora_request)
        self._processors.check(processed.request.params)
        warnings = self._unused.warnings(processed.request.params, priority, hints)
        children = fan_out(processed.request)
        self._outputs.add(request_id, children, processed.prompt_text, warnings, lora_request)
        try:
            for child in children:
                if child.samples:
                    self._processors.give(child)
                core.add(child, processed.engine)
        except BaseException:
            core.abort([child.request_id for child in children])
            for child in children:
                self._outputs.discard(child.request_id)
            raise

    def pooled_options(
        self, params: PoolingParams, priority: int, lora_request: object, extras: Mapping[str, Any]
    ) -> PooledOptions:
        """What each of some requests for values wants, checked. extras: further keywords of vLLM's"""
        hints = check_keywords("LLMEngine", extras)
        options = self._inputs.pooled_options(params, priority, lora_request)
        return replace(options, warnings=self._unused.warnings(options.sampling, priority, hints))

    def add_pooled(self, request_id: str, prompt: Any, options: PooledOptions) -> None:
        """As `add_request`."""
        core = self._core
        self._check_new(request_id)
        processed = self._inputs.process_pooled(request_id, prompt, options)
        self._outputs.add_pooled(processed.request, processed.prompt_text, options.warnings, options.lora_request)
        try:
            core.add(processed.request, processed.engine)
        except BaseException:
            core.abort([request_id])
            self._outputs.discard(request_id)
            raise

    def _check_new(self, request_id: str) -> None:
        if self._outputs.core_ids(request_id):
            raise InvalidRequestError(f"request_id {request_id!r} is already running", "request_id")

    def begin(self) -> None:
        """To be called between requests of which more are to come: what fills a step is computed meanwhile."""
        self._core.begin()

    def step(self) -> list[RequestOutput]:
        return self._outputs_of(self._core.step())

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Ends requests early; each still gives one last output, with finish_reason 'abort'."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        found = [core_id for user_id in ids for core_id in self._outputs.core_ids(user_id)]
        if found:
            self._core.abort(found)

    def drop_requests(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """As `abort_request`, without a step. -> the last outputs of these, and of all others that have ended"""
        if self._running is None:
            return []
        self.abort_request(request_ids)
        return self._outputs_of(self._running.take_ended())

    def _outputs_of(self, updates: Sequence[AnyUpdate]) -> list[RequestOutput]:
        outputs, stopped = self._outputs.process(updates)
        if stopped:
            self._core.abort(stopped, FinishReason.STOP)
        return outputs

    def has_unfinished_requests(self) -> bool:
        return self._running is not None and (self._outputs.num_unfinished() > 0 or self._running.has_unfinished())

    def shutdown(self) -> None:
        """Drops all requests and gives back what the engine holds: weights, KV cache, graphs and threads. Every later
        request is refused; a second call does nothing."""
        core, self._running = self._running, None
        if core is not None:
            self._outputs = OutputProcessor(self._tokenizer, self._metrics)
            core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if hasattr(self, "_running") and not sys.is_finalizing():
            self.shutdown()

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute("LLMEngine", name)

    @property
    def vllm_config(self) -> EngineConfig:
        """As scripts for vLLM call it."""
        return self.config

    @property
    def _core(self) -> AnyCore:
        if self._running is None:
            raise EngineDeadError("this engine was shut down; make a new one to go on")
        return self._running

    def encode(self, prompt: Any) -> list[int]:
        """The token ids of a prompt in any shape, checked as for a request."""
        return self.prepared(prompt).token_ids or []

    @property
    def placeholders(self) -> Mapping[str, str]:
        """By kind of medium, what stands for one in a prompt; empty = the model takes text alone."""
        return self._inputs.prompts.placeholders

    def prepared(self, prompt: Any) -> ParsedPrompt:
        """A prompt in any shape by its tokens, and what an encoder reads of it, checked as for a request."""
        return self._inputs.prepared(parse_prompt(prompt))

    def default_sampling_params(self) -> SamplingParams:
        """What the model's own generation config asks for."""
        return SamplingParams(**self._default_sampling)

    def get_num_unfinished_requests(self) -> int:
        return self._outputs.num_unfinished()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer.loaded()

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forgets all cached prefixes; False, and nothing done, while requests run. `reset_running_requests`: those
        are preempted, and computed again from their first token on. There is no connector to reset."""
        return self._call(control.RESET_PREFIX_CACHE, reset_running_requests)

    def reset_encoder_cache(self) -> None:
        """Forgets what was made of pictures and sounds; requests that run have theirs encoded again."""
        self._call(control.RESET_ENCODER_CACHE, None)

    def reset_mm_cache(self) -> None:
        """As `reset_encoder_cache`; and the names under which pictures were sent stand for none of them any more."""
        self._inputs.prompts.forget()
        self.reset_encoder_cache()

    def sleep(self, level: int = 1) -> None:
        """Computes nothing, and gives memory back: at level 1 weights are kept in host memory, at level 2 they are read
        again when it wakes. Requests that run wait, and what was cached is forgotten."""
        check_can_sleep(self.config, checked_level(level))
        self._sleeps = True
        self._call(control.SLEEP, 0)  # several engines come to rest before one gives memory back
        try:
            self._call(control.SLEEP, level)
        except InvalidRequestError:  # one of them could not
            self.wake_up()
            raise

    def wake_up(self, tags: list[str] | None = None) -> None:
        """All of it, or `weights` and `kv_cache` one after the other; requests go on when both are there."""
        for tag in checked_tags(tags):
            self._call(control.WAKE_UP, tag)
        parts = self._call(control.SLEEPING_PARTS, None)
        if only_held(parts):
            self._call(control.WAKE_UP, "")
            self._sleeps = False

    def is_sleeping(self) -> bool:
        """Whether any of it does."""
        return bool(self._call(control.SLEEPING_PARTS, None))

    def set_weights(self, state: WeightsState) -> None:
        """As `LLM.update_weights`: these files hold them."""
        rests = self._sleeps
        if not rests:
            self._call(control.SLEEP, 0)  # several engines come to rest before one has other weights
        try:
            self._call(control.UPDATE_WEIGHTS, state)
        finally:
            if not rests:
                self._call(control.WAKE_UP, "")

    def apply(self, function: Callable[[Any], Any]) -> list[Any]:
        """Calls it with the worker of this process -> what it returns; of one rank alone."""
        apply = getattr(self._core, "apply", None)
        if apply is None or self.config.parallel.has_workers:
            message = "functions cannot be sent to ranks and engines in other processes; name a method"
            raise InvalidRequestError(message, "method")
        return [apply(function)]

    def check_health(self) -> None:
        """Raises where the engine is gone."""
        self._call(control.STATE, False)

    def check_awake(self) -> None:
        """Before a caller waits for outputs."""
        if self._sleeps:
            raise InvalidRequestError("the engine sleeps: call wake_up() before you ask it for outputs")

    def add_lora(self, lora_request: object) -> bool:
        """Reads an adapter into host memory before a request names it. Raises an AdapterError for one that cannot be
        used."""
        return self._call(control.ADD_ADAPTER, required_adapter(lora_request, self.config.lora.enabled))

    def remove_lora(self, lora_id: int) -> bool:
        """Forgets an adapter: requests that run keep it, later ones have it read again. -> whether there was one"""
        return self._call(control.REMOVE_ADAPTER, checked_number(lora_id))

    def list_loras(self) -> set[int]:
        """The ids of the adapters in host memory."""
        numbers = self._call(control.LIST_ADAPTERS, None)
        return set(numbers)

    def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter in host memory, and in the slot that its first request gets, until it is removed."""
        return self._call(control.PIN_ADAPTER, checked_number(lora_id))

    def _call(self, verb: Verb[P, A], payload: P) -> A:
        answer, ends = self._core.call(verb, payload), time.monotonic() + verb.deadline_s
        while not answer.done():
            if time.monotonic() > ends:
                raise verb.unanswered("the engine")
            self._core.prepare()
        return answer.result()

    def get_metrics(self) -> list[Metric]:
        return in_vectors(self._metrics.snapshot(self._core.stats_by_engine()))


def _build_several(args: EngineArgs, processors: Sequence[Any]) -> EngineParts:
    try:
        from cadence.engine.dp_core import build_engines
    except ModuleNotFoundError as error:  # messages between processes are written by a package of the server's
        size = f"data_parallel_size={args.data_parallel_size}"
        raise ConfigError(f"{size} needs the package {error.name}", "data_parallel_size") from error
    return build_engines(args, processors)
