"""`AsyncLLM`: the engine in a process of its own, asked from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.generation import default_sampling
from cadence.core.engine_state import EngineState
from cadence.core.errors import EngineDeadError, InvalidRequestError, TokenizerError
from cadence.core.messages import Introduction
from cadence.core.outputs import RequestOutput
from cadence.core.request import FinishReason
from cadence.core.sampling_params import SamplingParams
from cadence.core.update import RequestUpdate
from cadence.engine.input_processor import InputLimits, InputProcessor, ProcessedInput
from cadence.engine.metrics.metric import Metric
from cadence.engine.metrics.recorder import MetricsRecorder, stats_of
from cadence.engine.output_processor import OutputProcessor
from cadence.engine.output_stream import OutputStream
from cadence.engine.parallel_sampling import fan_out
from cadence.engine.prompts import PromptType, parse_prompt
from cadence.engine.source import check_vocabulary, find_source
from cadence.engine.supervisor import Supervisor
from cadence.text.text_service import TextService
from cadence.text.tokenizer import Tokenizer

STATE_PERIOD_S = 1.0
DELIVERED_AT_ONCE = 64  # updates: about 2 ms


class AsyncLLM:
    """Text lives here, tokens in the engine process. One pump brings all outputs to their readers."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, supervisor: Supervisor, introduction: Introduction
    ) -> None:
        model = config.model
        limits = InputLimits.of(model, introduction.vocab_size, tokenizer)
        self.config = config
        self.model_name = model.files.name
        self.introduction = introduction
        self.default_sampling: dict[str, Any] = {}
        self._tokenizer = tokenizer
        self._texts = TextService(tokenizer, config.tokenizer, model.max_model_len) if tokenizer is not None else None
        self._supervisor = supervisor
        self._metrics = MetricsRecorder(self.model_name)
        self._inputs = InputProcessor(limits, tokenizer)
        self._outputs = OutputProcessor(tokenizer, self._metrics)
        self._streams: dict[str, OutputStream] = {}
        self._state = EngineState()
        self._death: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.dead = asyncio.Event()  # set when the engine was given up

    @classmethod
    async def start(cls, args: EngineArgs, on_stage: Callable[[str], None] = lambda line: None) -> AsyncLLM:
        """Starts the engine process and reads the tokenizer meanwhile. `on_stage` hears what was done and how long."""
        env.tokenise_in_caller()
        clock = _Clock(on_stage)
        source = await asyncio.to_thread(find_source, args)
        clock.lap(f"found {args.model}: {source.hf.architecture}")
        # Text stays on this side: the engine process needs no tokenizer of its own.
        supervisor = Supervisor({**dataclasses.asdict(args), "skip_tokenizer_init": True})
        updates = supervisor.updates()
        first = asyncio.ensure_future(anext(updates))  # starts the engine; done when it first speaks of tokens, or dies
        tokenizer = await asyncio.to_thread(source.load_tokenizer, args.skip_tokenizer_init)
        clock.lap("read the tokenizer")
        await asyncio.wait({first, supervisor.introduction}, return_when=asyncio.FIRST_COMPLETED)
        if not supervisor.introduction.done():
            await first  # raises what the engine died of
        introduction = supervisor.introduction.result()
        clock.lap(f"engine ready on {introduction.device_name}, {introduction.num_blocks} KV blocks")
        try:
            check_vocabulary(tokenizer, introduction.vocab_size)
        except TokenizerError:
            await supervisor.stop()
            await asyncio.gather(first, return_exceptions=True)
            raise
        config = source.resolve(args, _Caps(introduction))
        model = dataclasses.replace(config.model, max_model_len=introduction.max_model_len)
        llm = cls(dataclasses.replace(config, model=model), tokenizer, supervisor, introduction)
        llm.default_sampling = default_sampling(args, source.hf)
        llm._tasks = [asyncio.ensure_future(llm._pump(first, updates)), asyncio.ensure_future(llm._watch())]
        return llm

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequestError("there is no tokenizer: skip_tokenizer_init is set", "skip_tokenizer_init")
        return self._tokenizer

    @property
    def texts(self) -> TextService:
        """Tokenises and renders without holding up the event loop."""
        if self._texts is None:
            raise InvalidRequestError("there is no tokenizer: skip_tokenizer_init is set", "skip_tokenizer_init")
        return self._texts

    async def generate(
        self, prompt: PromptType, params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come. Leaving the loop early ends the request."""
        self._check_alive()
        if request_id in self._streams:
            raise InvalidRequestError(f"request_id {request_id!r} is already running", "request_id")
        processed = await self._process(request_id, prompt, params, priority)
        stream = OutputStream(params.output_kind)
        children = fan_out(processed.request)
        self._outputs.add(request_id, children, processed.prompt_text)
        self._streams[request_id] = stream
        try:
            for child in children:
                await self._supervisor.submit(child)
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            del self._streams[request_id]
            await self._drop(request_id)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets one last output, with finish_reason 'abort'."""
        stream = self._streams.get(request_id)
        for output in await self._drop(request_id):
            if stream is not None:
                stream.put(output)

    async def check_health(self) -> None:
        self._check_alive()

    def is_ready(self) -> bool:
        return self._death is None and self._supervisor.is_ready

    def last_step_age(self) -> float:
        """Seconds since the engine last gave a sign of life while it had work; 0 when it has none."""
        return time.monotonic() - self._supervisor.last_progress if self._streams else 0.0

    async def engine_state(self) -> EngineState:
        self._check_alive()
        return await self._supervisor.state(with_blocks=True)

    def get_metrics(self) -> list[Metric]:
        return self._metrics.snapshot(stats_of(self._state))

    @property
    def engine_pid(self) -> int:
        """0 while there is none."""
        return self._supervisor.pid

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    async def reset_prefix_cache(self) -> bool:
        self._check_alive()
        return await self._supervisor.reset_prefix_cache()

    async def shutdown(self, drain: bool) -> None:
        """With `drain`, requests under way finish first; without, their readers get an error."""
        while drain and self._streams and self._death is None:
            await asyncio.sleep(0.02)
        self._fail_all(EngineDeadError("the server is shutting down"))
        await self._supervisor.stop()
        if self._texts is not None:
            await self._texts.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _process(
        self, request_id: str, prompt: PromptType, params: SamplingParams, priority: int
    ) -> ProcessedInput:
        if params.logits_processors:
            raise InvalidRequestError(
                "logits_processors are Python functions and cannot be sent to an engine in another process; use LLM",
                "logits_processors",
            )
        parsed = parse_prompt(prompt)
        if parsed.token_ids is None and self._texts is not None:
            ids = (await self._texts.encode(parsed.text or "")).ids
            prompt = {"prompt": parsed.text or "", "prompt_token_ids": ids, "cache_salt": parsed.cache_salt}
        return self._inputs.process(request_id, prompt, params, priority)

    async def _drop(self, request_id: str) -> list[RequestOutput]:
        """Ends what still runs of a request, here and in the engine. Nothing to do for one that is over."""
        ids = list(self._outputs.core_ids(request_id))
        if not ids:
            return []
        outputs, _ = self._outputs.process([_aborted(core_id) for core_id in ids])
        await self._supervisor.drop(ids)
        return outputs

    async def _pump(
        self, first: asyncio.Future[list[RequestUpdate]], updates: AsyncIterator[list[RequestUpdate]]
    ) -> None:
        try:
            await self._deliver(await first)
            async for batch in updates:
                await self._deliver(batch)
        except (EngineDeadError, StopAsyncIteration) as death:
            self._fail_all(death if isinstance(death, EngineDeadError) else EngineDeadError("the engine was stopped"))
            self.dead.set()

    async def _deliver(self, updates: list[RequestUpdate]) -> None:
        """A large batch in parts: between them whoever else uses the event loop has a turn."""
        for start in range(0, len(updates), DELIVERED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            outputs, stopped = self._outputs.process(updates[start : start + DELIVERED_AT_ONCE])
            for output in outputs:
                stream = self._streams.get(output.request_id)
                if stream is not None:
                    stream.put(output)
            if stopped:
                await self._supervisor.drop(stopped)

    async def _watch(self) -> None:
        """Keeps a recent picture of the engine for the metrics."""
        while True:
            await asyncio.sleep(STATE_PERIOD_S)
            with contextlib.suppress(EngineDeadError, asyncio.CancelledError):
                self._state = await self._supervisor.state(with_blocks=False)

    def _fail_all(self, error: Exception) -> None:
        self._death = self._death or error
        for stream in self._streams.values():
            stream.fail(error)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))


class _Caps:
    """The engine's device, as `resolve` asks for it."""

    def __init__(self, introduction: Introduction) -> None:
        self.kind = introduction.kind
        self.total_memory = introduction.total_memory
        self.native_bf16, self.native_fp16 = introduction.native_bf16, introduction.native_fp16


class _Clock:
    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self._last = time.perf_counter()

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self._on_stage(f"{what} ({now - self._last:.2f} s)")
        self._last = now


def _aborted(core_id: str) -> RequestUpdate:
    return RequestUpdate(core_id, [], (), (), FinishReason.ABORT, None, 0, 0, 0.0)
