"""`AsyncLLM`: the engine in a process of its own, asked from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.resolve.generation import default_sampling
from cadence.core.contract.engine_state import EngineState, joined
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.step import FloatArray
from cadence.core.errors import EngineDeadError
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.outputs import RequestOutput
from cadence.core.pooled.pooled_outputs import PoolingOutput, PoolingRequestOutput, pooled
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.engine.fleet.dp_client import open_engines
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.metrics.cache_info import cache_labels
from cadence.engine.metrics.metric import Metric
from cadence.engine.source import check_vocabulary, find_source
from cadence.engine.supervise.engine_client import ClientFactory, EngineClient
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import ENGINE_COMMAND
from cadence.engine.text.async_beam import BeamRequest, search_beams
from cadence.engine.text.beam import BeamSearch
from cadence.engine.text.held_updates import Resumption, StreamPosition
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor, ProcessedInput
from cadence.engine.text.live_request import LiveInput
from cadence.engine.text.output_processor import OutputProcessor, OutputStream
from cadence.engine.text.prompts import PromptType
from cadence.engine.text.text_tap import TextTap
from cadence.engine.text.unused import UnusedOptions
from cadence.entrypoints.async_control import AsyncControl
from cadence.entrypoints.async_inputs import AsyncInputs
from cadence.entrypoints.engine_control import ControlFactory, EngineControl
from cadence.entrypoints.live_input import LiveRequests
from cadence.entrypoints.open_requests import OpenRequests, Submission
from cadence.entrypoints.start_clock import StartClock
from cadence.text.null_tokenizer import AnyTokenizer
from cadence.text.service.null_text_service import open_text_service
from cadence.text.service.text_service import TextService
from cadence.text.tokenizer import Tokenizer

logger = logging.getLogger("cadence.engine")

DEFAULT_LIMITS = SupervisorLimits()
STATE_PERIOD_S = 1.0


class AsyncLLM(AsyncControl):
    """Text lives here, tokens in the engine process. One pump brings all outputs to their readers."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: AnyTokenizer,
        engines: EngineClient,
        info: EngineInfo,
        open_control: ControlFactory = EngineControl,
    ) -> None:
        model, most_drafts = config.model, config.speculative.num_tokens
        size = config.parallel.data_parallel_size
        limits = InputLimits.of(
            model, info.vocab_size, tokenizer, config.structured, config.lora.enabled, size, config.pooling
        )
        self.model_name = model.files.name
        cache = cache_labels(config.cache, info.num_blocks)
        self.metrics = MetricsByEngine(self.model_name, cache, most_drafts, config.lora.max_loras, size)
        self._outputs = OutputProcessor(tokenizer, self.metrics)
        super().__init__(config, engines, OpenRequests(engines, self._outputs), open_control)
        self.info = info
        self.vocab_size = limits.vocab_size
        self.default_sampling: dict[str, Any] = {}
        self._tokenizer = tokenizer
        self._texts = open_text_service(tokenizer, config.tokenizer, max(model.max_model_len, model.encoder.max_len))
        self.inputs = AsyncInputs(InputProcessor(limits, tokenizer), self._texts)
        self._unused = UnusedOptions(config.scheduler.policy, False, most_drafts)
        self._live = LiveRequests()
        self._states = [EngineState() for _ in range(size)]
        self._tasks: list[asyncio.Task[None]] = []
        self.dead = asyncio.Event()  # set when the engine was given up

    @classmethod
    async def start(
        cls,
        args: EngineArgs,
        on_stage: Callable[[str], None] = lambda line: None,
        *,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        limits: SupervisorLimits = DEFAULT_LIMITS,
        open_client: ClientFactory = open_engines,
        open_control: ControlFactory = EngineControl,
    ) -> AsyncLLM:
        """Starts the engine process and reads the tokenizer meanwhile. `on_stage` hears what was done and how long.
        `open_client`, `open_control`: for a front whose engines are another process's."""
        env.tokenise_in_caller()
        args = peer_env.applied(args, env.peer_variables())
        clock = StartClock(on_stage)
        source = await asyncio.to_thread(find_source, args)
        clock.lap(f"found {args.model}: {source.hf.architecture}")
        supervisor = open_client(source.engine_options(args), engine_command, limits)
        supervisor.start()
        try:
            tokenizer = await asyncio.to_thread(source.load_tokenizer, args.skip_tokenizer_init)
            clock.lap("read the tokenizer")
            info = await supervisor.wait_ready()
            clock.lap(f"engine ready on {info.device_name}, {info.num_blocks} KV blocks")
            check_vocabulary(tokenizer, info.vocab_size)
            llm = cls(source.resolve_front(args, info), tokenizer, supervisor, info, open_control)
        except BaseException:
            await supervisor.stop()
            raise
        llm.default_sampling = default_sampling(args, source.hf)
        llm._tasks = [asyncio.ensure_future(llm._guarded(job)) for job in (llm._pump, llm._watch)]
        return llm

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer.loaded()

    @property
    def texts(self) -> TextService:
        """Tokenises and renders without holding up the event loop."""
        return self._texts.loaded()

    async def generate(
        self,
        prompt: PromptType | LiveInput,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        hints: Sequence[str] = (),
        cap_logprobs: bool = True,
        lora_request: object = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Outputs as they come. Leaving the loop early ends the request. `hints` are warnings to hand on. A prompt that
        is an asynchronous iterator of prompts, or of `StreamingInput`, grows while it is answered."""
        self._check_alive()
        if isinstance(prompt, AsyncIterable):
            given = {"priority": priority, "hints": hints, "cap_logprobs": cap_logprobs, "lora_request": lora_request}
            async with contextlib.aclosing(self.live(prompt, params, request_id, **given)) as outputs:
                async for output in outputs:
                    yield output
            return
        params = self._open.seeded(request_id, params)
        processed = await self.inputs.process(
            request_id, prompt, params, priority=priority, cap_logprobs=cap_logprobs, lora_request=lora_request
        )
        warnings = self._unused.warnings(params, priority, list(hints))
        stream = await self._begin(request_id, processed, warnings, lora_request)
        try:
            if processed.request.output_token_ids:
                self._open.replay(processed.request, stream)
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            self._open.finish(request_id)

    def live(
        self, prompt: LiveInput, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput]:
        """As `generate`, for a prompt that grows. options: also `ends_with_answer` of `LiveWriter`"""
        return self._live.outputs(self, prompt, params, request_id, **options)

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: object = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput]]:
        """One output: what the model makes of the prompt in place of text. Leaving the loop early ends the request."""
        self._check_alive()
        processed = await self.inputs.process_pooling(
            request_id, prompt, pooling_params, priority=priority, lora_request=lora_request
        )
        stream = await self._begin(request_id, processed, [], lora_request)
        try:
            yield pooled(await stream.next())
        finally:
            self._open.finish(request_id)

    async def align(
        self,
        prompt: PromptType,
        spec: AlignmentSpec,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: object = None,
    ) -> FloatArray:
        """How the tokens of the decoder's prompt look along what the encoder reads: [tokens, positions]. spec:
        which tokens, and of which heads."""
        self._check_alive()
        processed = await self.inputs.process_alignment(
            request_id, prompt, spec, priority=priority, lora_request=lora_request
        )
        stream = await self._begin(request_id, processed, [], lora_request)
        try:
            matrix_np: FloatArray = pooled(await stream.next()).outputs.data
            return matrix_np
        finally:
            self._open.finish(request_id)

    async def _begin(
        self, request_id: str, processed: ProcessedInput, warnings: list[str], lora_request: object
    ) -> OutputStream:
        """Sends a request to the engine. `OpenRequests.finish` must follow."""
        submission = Submission(processed.request, processed.engine)
        await self._hold.wait_over()
        self._check_alive()
        return self._open.begin(request_id, submission, processed.prompt_text, warnings, lora_request)

    async def beam_search(
        self,
        prompt: PromptType,
        params: BeamSearchParams,
        request_id: str,
        *,
        priority: int = 0,
        skip_special_tokens: bool = True,
        lora_request: object = None,
    ) -> AsyncGenerator[RequestOutput]:
        """One output: the `beam_width` best continuations. Leaving the loop early ends the search."""
        parsed = await self.inputs.prepared(prompt)
        search = BeamSearch(self.config.model.max_model_len, self.inputs.eos_token_ids, params)
        show_stop = params.include_stop_str_in_output
        request = BeamRequest(request_id, parsed.text, parsed.token_ids or [], skip_special_tokens, show_stop)

        async def ask(number: int, tokens: list[int]) -> RequestOutput:
            beam = replace(parsed, text=None, token_ids=tokens)
            name = f"{request_id}-beam-{number}"
            given: dict[str, Any] = {"priority": priority, "cap_logprobs": False, "lora_request": lora_request}
            outputs = self.generate(beam, search.probe, name, **given)
            return [output async for output in outputs][-1]

        yield await search_beams(search, request, ask, self._tokenizer)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets one last output, with finish_reason 'abort'."""
        if not self._live.abort(request_id):
            self._open.abort(request_id)

    def tap(self, request_id: str, tap: TextTap) -> None:
        """Text of a request that runs goes to `tap`, while its reader waits for it and nothing but text has come."""
        self._open.tap(request_id, tap)

    def position(self, request_id: str) -> StreamPosition | None:
        """How far the reader of a request is; None = it does not run. From any thread while the event loop is stuck."""
        return self._open.position(request_id)

    def stream(self, request_id: str) -> OutputStream | None:
        """To the reader of a request; None = it does not run."""
        return self._open.stream(request_id)

    def resume(self, request_id: str, resumption: Resumption) -> None:
        """A request that `generate` will be called for goes on where its reader was."""
        self._open.resume(request_id, resumption)

    def is_ready(self) -> bool:
        return self._death is None and self._supervisor.is_ready

    def last_step_age(self) -> float:
        """Seconds since the engine last made progress while it had work; 0 when it has none."""
        if self._hold.now.is_still or not self._open:
            return 0.0
        return time.monotonic() - max(self._supervisor.last_progress, self._hold.went_on)

    async def engine_states(self) -> list[EngineState]:
        """Of each engine."""
        self._check_alive()
        return await self._supervisor.states(with_blocks=True)

    async def engine_state(self) -> EngineState:
        """Of all engines together."""
        return joined(await self.engine_states())

    def get_metrics(self) -> list[Metric]:
        stats = [state.stats for state in self._states]
        return [*self.metrics.snapshot(stats), *self.metrics.restarts(self._supervisor.counts())]

    @property
    def engine_pid(self) -> int:
        """Of the first; 0 while there is none."""
        return self.engine_pids[0]

    @property
    def engine_pids(self) -> list[int]:
        return self._supervisor.pids

    @property
    def num_restarts(self) -> int:
        return sum(counts.restarts for counts in self._supervisor.counts())

    async def shutdown(self, drain: bool) -> None:
        """With `drain`, requests under way finish first; without, their readers get an error."""
        if drain and self._hold.now.is_kept:
            await self.resume_generation()
        if drain and self._hold.now.is_asleep:
            await self.wake_up()
        if drain:
            await self._open.wait_idle()
        self._fail_all(EngineDeadError("the server is shutting down"))
        await self._supervisor.stop()
        self._control.close()
        await self._texts.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, job: Callable[[], Awaitable[None]]) -> None:
        """A task of this object: it runs until shutdown, and if it ends before, every open request fails."""
        try:
            await job()
            death = EngineDeadError("the engine was stopped")
        except EngineDeadError as error:
            death = error
        except Exception:
            logger.exception("a task of the engine's front failed")
            death = EngineDeadError("the engine's front failed; the server's log says how")
        self._fail_all(death)
        self.dead.set()

    async def _pump(self) -> None:
        async for batch in self._supervisor.updates():
            await self._open.deliver(batch)

    async def _watch(self) -> None:
        """Keeps a recent picture of the engine for the metrics."""
        while True:
            await asyncio.sleep(STATE_PERIOD_S)
            with contextlib.suppress(EngineDeadError):
                self._states = await self._supervisor.states(with_blocks=False)

    def _fail_all(self, error: Exception) -> None:
        self._death = self._death or error
        self._hold.give_up()
        self._control.give_up()
        self._open.fail_all(error)
