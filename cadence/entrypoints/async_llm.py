"""`AsyncLLM`: the engine in a process of its own, asked from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.generation import default_sampling
from cadence.core.contract.control import (
    ADD_ADAPTER,
    LIST_ADAPTERS,
    PIN_ADAPTER,
    REMOVE_ADAPTER,
    RESET_PREFIX_CACHE,
)
from cadence.core.contract.engine_state import EngineState, joined
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.update import AnyUpdate, RequestUpdate
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.core.lora_request import checked_number, required_adapter
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.engine.fleet.dp_client import open_engines
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.metrics.cache_info import cache_labels
from cadence.engine.metrics.metric import Metric
from cadence.engine.source import check_vocabulary, find_source
from cadence.engine.supervise.engine_client import ClientFactory, EngineClient
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.pause import Pause
from cadence.engine.supervise.supervisor import ENGINE_COMMAND, entry_of
from cadence.engine.text.async_beam import BeamRequest, search_beams
from cadence.engine.text.beam import BeamSearch
from cadence.engine.text.input_processor import InputLimits, InputProcessor
from cadence.engine.text.output_processor import OutputProcessor, OutputStream
from cadence.engine.text.parallel_sampling import fan_out
from cadence.engine.text.prompts import PromptType, parse_prompt
from cadence.engine.text.text_tap import TextTap
from cadence.engine.text.unused import UnusedOptions
from cadence.entrypoints.async_inputs import AsyncInputs
from cadence.process.together import first_of
from cadence.text.null_text_service import open_text_service
from cadence.text.null_tokenizer import AnyTokenizer
from cadence.text.text_service import TextService
from cadence.text.tokenizer import Tokenizer

logger = logging.getLogger("cadence.engine")

DEFAULT_LIMITS = SupervisorLimits()
STATE_PERIOD_S = 1.0
PAUSE_MODES = ("abort", "wait", "keep")
DELIVERED_AT_ONCE = 64  # updates: about 2 ms


class AsyncLLM:
    """Text lives here, tokens in the engine process. One pump brings all outputs to their readers."""

    def __init__(self, config: EngineConfig, tokenizer: AnyTokenizer, engines: EngineClient, info: EngineInfo) -> None:
        model, most_drafts = config.model, config.speculative.num_tokens
        size = config.parallel.data_parallel_size
        limits = InputLimits.of(model, info.vocab_size, tokenizer, config.structured, config.lora.enabled, size)
        self.config = config
        self.model_name = model.files.name
        self.info = info
        self.vocab_size = limits.vocab_size
        self.default_sampling: dict[str, Any] = {}
        self._tokenizer = tokenizer
        self._texts = open_text_service(tokenizer, config.tokenizer, model.max_model_len)
        self._supervisor = engines
        cache = cache_labels(config.cache, info.num_blocks)
        self._metrics = MetricsByEngine(self.model_name, cache, most_drafts, config.lora.max_loras, size)
        self._inputs = AsyncInputs(InputProcessor(limits, tokenizer), self._texts)
        self._outputs = OutputProcessor(tokenizer, self._metrics)
        self._unused = UnusedOptions(config.scheduler.policy, False, most_drafts)
        self._streams: dict[str, OutputStream] = {}
        self._idle = asyncio.Event()  # there are no streams, or the engine is dead
        self._idle.set()
        self._states = [EngineState() for _ in range(size)]
        self._pause = Pause(engines)
        self._death: Exception | None = None
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
    ) -> AsyncLLM:
        """Starts the engine process and reads the tokenizer meanwhile. `on_stage` hears what was done and how long.
        `open_client`: for a front whose engines are another process's."""
        env.tokenise_in_caller()
        args = peer_env.applied(args, env.peer_variables())
        clock = _Clock(on_stage)
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
            llm = cls(source.resolve_front(args, info), tokenizer, supervisor, info)
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
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        hints: Sequence[str] = (),
        cap_logprobs: bool = True,
        lora_request: object = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Outputs as they come. Leaving the loop early ends the request. `hints` are warnings to hand on."""
        self._check_alive()
        processed = await self._inputs.process(
            request_id, prompt, params, priority=priority, cap_logprobs=cap_logprobs, lora_request=lora_request
        )
        stream = OutputStream(params.output_kind)
        whole = entry_of(processed.request, processed.engine)  # raises, before n completions are made of it
        children = fan_out(processed.request)
        entries = [whole] if len(children) == 1 else [entry_of(child, processed.engine) for child in children]
        await self._pause.wait_over()
        self._check_alive()
        if request_id in self._streams:
            raise InvalidRequestError(f"request_id {request_id!r} is already running", "request_id")
        warnings = self._unused.warnings(params, priority, list(hints))
        self._outputs.add(request_id, children, processed.prompt_text, warnings, lora_request)
        self._streams[request_id] = stream
        self._idle.clear()
        try:
            for entry in entries:
                self._supervisor.submit(entry)
            if processed.request.output_token_ids:
                self._replay(processed.request, stream)
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            del self._streams[request_id]
            if not self._streams:
                self._idle.set()
            self._drop(request_id)

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
        parsed = parse_prompt(prompt)
        tokens = await self._inputs.token_ids(parsed)
        search = BeamSearch(self.config.model.max_model_len, self._inputs.eos_token_ids, params)
        request = BeamRequest(request_id, parsed.text, tokens, skip_special_tokens, params.include_stop_str_in_output)

        async def ask(number: int, tokens: list[int]) -> RequestOutput:
            beam = replace(parsed, text=None, token_ids=tokens)
            name = f"{request_id}-beam-{number}"
            given: dict[str, Any] = {"priority": priority, "cap_logprobs": False, "lora_request": lora_request}
            outputs = self.generate(beam, search.probe, name, **given)
            return [output async for output in outputs][-1]

        yield await search_beams(search, request, ask, self._tokenizer)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets one last output, with finish_reason 'abort'."""
        stream = self._streams.get(request_id)
        for output in self._drop(request_id):
            if stream is not None:
                stream.put(output)

    def tap(self, request_id: str, tap: TextTap) -> None:
        """Text of a request that runs goes to `tap`, while its reader waits for it and nothing but text has come."""
        if stream := self._streams.get(request_id):
            stream.tap(tap)

    async def check_health(self) -> None:
        self._check_alive()

    def is_ready(self) -> bool:
        return self._death is None and self._supervisor.is_ready

    def last_step_age(self) -> float:
        """Seconds since the engine last made progress while it had work; 0 when it has none."""
        if self._pause.is_kept or not self._streams:
            return 0.0
        return time.monotonic() - max(self._supervisor.last_progress, self._pause.resumed)

    async def engine_states(self) -> list[EngineState]:
        """Of each engine."""
        self._check_alive()
        return await self._supervisor.states(with_blocks=True)

    async def engine_state(self) -> EngineState:
        """Of all engines together."""
        return joined(await self.engine_states())

    def get_metrics(self) -> list[Metric]:
        stats = [state.stats for state in self._states]
        return [*self._metrics.snapshot(stats), *self._metrics.restarts(self._supervisor.counts())]

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

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self._check_alive()
        return await self._supervisor.call(RESET_PREFIX_CACHE, reset_running_requests)

    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """New requests wait for `resume_generation`. Those that run are aborted, waited for (`wait`), or go on then
        (`keep`)."""
        self._check_alive()
        if mode not in PAUSE_MODES:
            raise InvalidRequestError(f"mode must be one of {', '.join(PAUSE_MODES)}, not {mode!r}", "mode")
        self._pause.begin()
        if mode == "abort":
            for request_id in list(self._streams):
                await self.abort(request_id)
        if mode == "keep":
            await self._pause.keep()
        else:
            await first_of(self._idle.wait(), self._pause.wait_over())
        if clear_cache and self._pause.is_on:
            await self.reset_prefix_cache(reset_running_requests=True)  # of aborted requests, as a rule

    async def resume_generation(self) -> None:
        await self._pause.resume()

    async def is_paused(self) -> bool:
        return self._pause.is_on

    async def add_lora(self, lora_request: object) -> bool:
        """Reads an adapter into host memory before a request names it. Raises an AdapterError for one that cannot be
        used. A restarted engine has it again."""
        self._check_alive()
        return await self._supervisor.call(ADD_ADAPTER, required_adapter(lora_request, self.config.lora.enabled))

    async def remove_lora(self, lora_id: int) -> bool:
        """Forgets an adapter: requests that run keep it, later ones have it read again. -> whether there was one"""
        self._check_alive()
        return await self._supervisor.call(REMOVE_ADAPTER, checked_number(lora_id))

    async def list_loras(self) -> set[int]:
        """The ids of the adapters in host memory."""
        self._check_alive()
        return set(await self._supervisor.call(LIST_ADAPTERS, None))

    async def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter in host memory, and in the slot that its first request gets, until it is removed."""
        self._check_alive()
        return await self._supervisor.call(PIN_ADAPTER, checked_number(lora_id))

    async def shutdown(self, drain: bool) -> None:
        """With `drain`, requests under way finish first; without, their readers get an error."""
        if drain and self._pause.is_kept:
            await self.resume_generation()
        if drain:
            await self._idle.wait()
        self._fail_all(EngineDeadError("the server is shutting down"))
        await self._supervisor.stop()
        await self._texts.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _replay(self, request: EngineRequest, stream: OutputStream) -> None:
        """The answer begins with tokens that it has already."""
        for output in self._outputs.replay(request.request_id, request.output_token_ids):
            stream.put(output)

    def _drop(self, request_id: str) -> list[RequestOutput]:
        """Ends what still runs of a request, here and in the engine. Nothing to do for one that is over."""
        ids = list(self._outputs.core_ids(request_id))
        if not ids:
            return []
        self._supervisor.drop(ids)
        outputs, _ = self._outputs.process([RequestUpdate.end(core_id, FinishReason.ABORT) for core_id in ids])
        return outputs

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
            await self._deliver(batch)

    async def _deliver(self, updates: Sequence[AnyUpdate]) -> None:
        """A large batch in parts: between them other tasks of the event loop run."""
        for number, update in enumerate(updates):
            if number and number % DELIVERED_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                if self._outputs.put_text(update, self._streams):
                    continue
                outputs, stopped = self._outputs.process([update])
            except Exception:  # of one request's text: it fails alone
                logger.exception("an output could not be made into text")
                self._fail_one(update.request_id)
                continue
            for output in outputs:
                stream = self._streams.get(output.request_id)
                if stream is not None and not stream.put(output):
                    self._drop(output.request_id)
            if stopped:
                self._supervisor.drop(stopped)

    async def _watch(self) -> None:
        """Keeps a recent picture of the engine for the metrics."""
        while True:
            await asyncio.sleep(STATE_PERIOD_S)
            with contextlib.suppress(EngineDeadError):
                self._states = await self._supervisor.states(with_blocks=False)

    def _fail_one(self, core_id: str) -> None:
        user_id = self._outputs.discard(core_id)
        if user_id in self._streams:
            self._streams[user_id].fail(RuntimeError("an output could not be made into text"))
        self._supervisor.drop([core_id])

    def _fail_all(self, error: Exception) -> None:
        self._death = self._death or error
        self._pause.give_up()
        self._idle.set()
        for stream in self._streams.values():
            stream.fail(error)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))


class _Clock:
    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self._last = time.perf_counter()

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self._on_stage(f"{what} ({now - self._last:.2f} s)")
        self._last = now
