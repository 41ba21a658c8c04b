"""`AsyncLLMEngine`: `AsyncLLM` under vLLM's calling conventions.

It is made and shut down by plain calls, whether or not an event loop is running, so the engine's front has a thread and
a loop of its own. Who has a loop anyway, as the server does, uses `AsyncLLM` and saves the hop between threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.core.errors import EngineDeadError
from cadence.core.outputs import RequestOutput
from cadence.core.pooled.pooled_outputs import PoolingOutput, PoolingRequestOutput
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.refusals import without_frames
from cadence.core.sampling_params import SamplingParams
from cadence.engine.metrics.metric import Metric
from cadence.engine.missing import missing_attribute
from cadence.engine.text.live_request import LiveInput
from cadence.engine.text.prompts import PromptType, pinned
from cadence.engine.text.unused import check_keywords, name_start_keywords
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.live_input import chunks_of_loop
from cadence.entrypoints.weights_files import Named, NewWeights
from cadence.text.tokenizer import Tokenizer

T = TypeVar("T")


class AsyncLLMEngine:
    """An engine in a process of its own. `from_engine_args` returns when the model is loaded."""

    @without_frames
    def __init__(self, engine_args: EngineArgs) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cadence-front", daemon=True)
        self._thread.start()
        self._stopped = False
        try:
            self._llm = self._wait(AsyncLLM.start(engine_args))
        except BaseException:
            self._end_loop()
            raise

    @classmethod
    @without_frames
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: object = None,
        **unused: object,
    ) -> Self:
        """What else vLLM takes here is accepted and named in the log."""
        given = {"usage_context": usage_context, "stat_loggers": stat_loggers, **unused}
        if not start_engine_loop:
            given["start_engine_loop"] = start_engine_loop
        name_start_keywords("AsyncLLMEngine.from_engine_args", given)
        return cls(engine_args)

    async def generate(
        self,
        prompt: PromptType | LiveInput,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: object | None = None,
        priority: int = 0,
        **extras: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come. Leaving the loop early ends the request. A prompt may be an asynchronous iterator of
        `StreamingInput`, and grows then while it is answered."""
        if self._stopped:
            raise EngineDeadError("this engine was shut down; make a new one to go on")
        rank = extras.pop("data_parallel_rank", None)
        if isinstance(prompt, AsyncIterable):
            prompt = chunks_of_loop(prompt, asyncio.get_running_loop(), rank)
        else:
            prompt = pinned(prompt, rank)
        hints = check_keywords("AsyncLLMEngine", extras)
        given = {"priority": priority, "hints": hints, "lora_request": lora_request}
        stream = self._llm.generate(prompt, sampling_params, request_id, **given)
        try:
            while (output := await self._call(_next(stream))) is not None:
                if output.finished:  # readers leave with the last output, and may shut the engine down before this ends
                    await self._call(_close(stream))
                    yield output
                    return
                yield output
        finally:
            if not self._stopped:
                asyncio.run_coroutine_threadsafe(_close(stream), self._loop)

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: object | None = None,
        priority: int = 0,
        **extras: Any,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """One output: what the model makes of the prompt in place of text. Leaving the loop early ends the request."""
        if self._stopped:
            raise EngineDeadError("this engine was shut down; make a new one to go on")
        prompt = pinned(prompt, extras.pop("data_parallel_rank", None))
        check_keywords("AsyncLLMEngine", extras)
        given = {"priority": priority, "lora_request": lora_request}
        stream = self._llm.encode(prompt, pooling_params, request_id, **given)
        try:
            output = await self._call(_next(stream))
            await self._call(_close(stream))
            assert output is not None
            yield output
        finally:
            if not self._stopped:
                asyncio.run_coroutine_threadsafe(_close(stream), self._loop)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests; each reader gets one last output, with finish_reason 'abort'."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            await self._call(self._llm.abort(one))

    async def check_health(self) -> None:
        await self._call(self._llm.check_health())

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """As `LLMEngine.reset_prefix_cache`."""
        return await self._call(self._llm.reset_prefix_cache(reset_running_requests))

    async def reset_encoder_cache(self) -> None:
        """As `LLMEngine.reset_encoder_cache`."""
        await self._call(self._llm.reset_encoder_cache())

    async def reset_mm_cache(self) -> None:
        """As `LLMEngine.reset_mm_cache`."""
        await self._call(self._llm.reset_mm_cache())

    async def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """New requests wait until `resume_generation`; those that run are aborted, waited for (mode="wait", or
        `wait_for_inflight_requests`), or go on then (mode="keep"). `clear_cache`: the prefix cache is empty afterwards,
        and requests that go on compute their keys again."""
        await self._call(self._llm.pause_generation("wait" if wait_for_inflight_requests else mode, clear_cache))

    async def resume_generation(self) -> None:
        await self._call(self._llm.resume_generation())

    async def is_paused(self) -> bool:
        return await self._call(self._llm.is_paused())

    async def sleep(self, level: int = 1, mode: str = "keep") -> None:
        """As `AsyncLLM.sleep`."""
        await self._call(self._llm.sleep(level, mode))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """As `LLMEngine.wake_up`."""
        await self._call(self._llm.wake_up(tags))

    async def is_sleeping(self) -> bool:
        return await self._call(self._llm.is_sleeping())

    async def update_weights(self, weights: NewWeights) -> None:
        """As `LLM.update_weights`. A restarted engine has them, too."""
        await self._call(self._llm.update_weights(weights))

    async def reload_weights(self, weights_path: str | None = None, weights_iterator: Named | None = None) -> None:
        """As `LLM.reload_weights`."""
        await self._call(self._llm.reload_weights(weights_path, weights_iterator))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As `AsyncLLM.collective_rpc`."""
        return await self._call(self._llm.collective_rpc(method, timeout, args, kwargs))

    async def add_lora(self, lora_request: object) -> bool:
        """Reads an adapter into host memory before a request names it."""
        return await self._call(self._llm.add_lora(lora_request))

    async def remove_lora(self, lora_id: int) -> bool:
        """Forgets an adapter; what runs keeps it."""
        return await self._call(self._llm.remove_lora(lora_id))

    async def list_loras(self) -> set[int]:
        return await self._call(self._llm.list_loras())

    async def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter in host memory, and in the slot that its first request gets, until it is removed."""
        return await self._call(self._llm.pin_lora(lora_id))

    async def do_log_stats(self) -> None:
        """Statistics are never logged; `get_metrics` returns them."""

    async def is_tracing_enabled(self) -> bool:
        return False

    async def get_supported_tasks(self) -> tuple[str, ...]:
        pooling = self._llm.config.pooling
        return (*(("generate",) if pooling.generates else ()), *pooling.tasks)

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    @property
    def config(self) -> EngineConfig:
        return self._llm.config

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation config asks for."""
        return SamplingParams(**self._llm.default_sampling)

    def get_metrics(self) -> list[Metric]:
        return self._llm.get_metrics()

    @property
    def is_running(self) -> bool:
        return not self._stopped and not self._llm.dead.is_set()

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        return self._llm.dead.is_set() and not self._stopped

    def shutdown(self, timeout: float | None = None) -> None:
        """Ends all requests and the engine process; a second call does nothing. `timeout` in seconds, None = as long
        as it takes."""
        if self._stopped:
            return
        self._stopped = True
        try:
            self._wait(self._llm.shutdown(drain=False), timeout)
        finally:
            self._end_loop()

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(type(self).__name__, name)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits on this thread's loop what runs on the front's."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()


async def _next(stream: AsyncGenerator[T]) -> T | None:
    """Called on the front's loop, which then owns the stream."""
    return await anext(stream, None)


async def _close(stream: AsyncGenerator[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # it is running still, and its cancellation is on the way
        await stream.aclose()
