"""`AsyncLLM` without a model: prompts are checked, tokenised, detokenised and stopped by the engine's own parts, and
the "model" repeats the prompt's tokens, round and round. Deterministic, and as slow as asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cadence.config.args import EngineArgs
from cadence.config.hf import load_hf_config
from cadence.config.pooling import PoolingConfig
from cadence.config.reference import ModelFiles
from cadence.config.resolve.resolve import resolve
from cadence.core.contract.engine_state import EngineState, EngineStats, RequestView
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.step import PromptLogprobs, TokenLogprobs
from cadence.core.contract.update import RequestUpdate
from cadence.core.errors import EngineDeadError
from cadence.core.grammar import GrammarSpec
from cadence.core.lora_request import LoRARequest
from cadence.core.outputs import RequestOutput
from cadence.core.pooled.pooled_outputs import PoolingOutput, PoolingRequestOutput, pooled
from cadence.core.pooled.pooling import EMBED, PoolingSpec
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.metrics.metric import Metric
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor
from cadence.engine.text.output_processor import OutputProcessor
from cadence.engine.text.parallel_sampling import fan_out
from cadence.entrypoints.async_inputs import AsyncInputs
from cadence.runner.features.pooling.finish import finished
from cadence.text.hf_directory import load_tokenizer
from cadence.text.service.text_service import TextLimits, TextService
from tests.helpers.tiny_tokenizers import byte_level, save

TEMPLATE = (
    "{% for message in messages %}{{ '<|turn|>' + message['role'] + ': ' + (message['content'] or '') + '\n' }}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant: ' }}{% endif %}"
)
_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip

POOLING = PoolingConfig(size=8, dimensions=(4,))


def save_fake_model(directory: Path, template: str = TEMPLATE) -> Path:
    """A config and a tokenizer, and no weights."""
    save(byte_level(), directory, chat_template=template)
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    return directory


class FakeLLM:
    """`delay`: seconds per token. `script`: a text the model says instead of repeating the prompt."""

    def __init__(
        self,
        directory: Path,
        *,
        delay: float = 0.0,
        script: str | None = None,
        pooling: PoolingConfig = POOLING,
        text_limits: TextLimits = TextLimits(),  # noqa: B008 (frozen)
        **options: Any,
    ) -> None:
        args = EngineArgs.from_options(model=str(directory), **{"max_model_len": 1024, **options})
        files = ModelFiles("fake", directory, None)
        caps: Any = SimpleNamespace(kind="cpu", total_memory=2**30, native_bf16=False, native_fp16=False, count=1)
        hf = load_hf_config(files)
        self.config = replace(resolve(args, files, hf, caps), pooling=pooling)
        self.tokenizer = load_tokenizer(directory)
        self.texts = TextService(self.tokenizer, self.config.tokenizer, self.config.model.max_model_len, text_limits)
        self.model_name = "fake"
        self.delay = delay
        self.script = script
        self.ready = True
        self.dead = asyncio.Event()  # set when the engine was given up
        self.default_sampling: dict[str, Any] = {}
        self._death = ""
        self.paused: tuple[str, bool] | None = None  # how it was, while it is
        self.slept: int | None = None  # the level, while it sleeps
        self.slept_after = ""  # what became of requests that ran
        self.woken: list[str] | None = None  # tags
        self.forgotten = 0  # times that its encoder cache was emptied
        self.step_age = 0.0
        self.started: list[str] = []  # ids of requests that reached the engine
        self.grammars: list[GrammarSpec | None] = []  # of these
        self.ranks: list[int | None] = []  # of these: the engines that they are for
        self.adapters: list[LoRARequest | None] = []  # of those that were asked for
        self.aborted: list[str] = []
        self.most_running = 0  # requests for values, at once
        model = self.config.model
        self.vocab_size = 512
        limits = InputLimits(
            512,
            model.max_model_len,
            model.max_logprobs,
            model.seed,
            self.tokenizer.eos_token_ids,
            num_engines=self.config.parallel.data_parallel_size,
            pooling=pooling,
        )
        self.inputs = AsyncInputs(InputProcessor(limits, self.tokenizer), self.texts)
        self.metrics = MetricsByEngine("fake")
        self._outputs = OutputProcessor(self.tokenizer, self.metrics)
        self._running: dict[str, list[EngineRequest]] = {}
        self._last_words: dict[str, list[RequestOutput]] = {}  # of aborted requests

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, *, priority: int = 0, lora_request: Any = None
    ) -> AsyncIterator[RequestOutput]:
        self._check_alive()
        self.adapters.append(lora_request)
        processed = await self.inputs.process(request_id, prompt, params, priority=priority)
        children = fan_out(processed.request)
        self._outputs.add(request_id, children, processed.prompt_text)
        self._running[request_id] = children
        self.started.append(request_id)
        self.grammars.append(processed.request.attached(GrammarSpec))
        self.ranks.append(processed.engine)
        try:
            for step in range(processed.request.stop.max_tokens):
                await asyncio.sleep(self.delay)
                self._check_alive()
                for output in self._last_words.pop(request_id, []) or self._step(request_id, step):
                    yield output
                    if output.finished:
                        return
        finally:
            del self._running[request_id]
            if self._outputs.core_ids(request_id):
                self._end(request_id)

    def position(self, request_id: str) -> None:
        """Nothing goes on with another of these."""

    def stream(self, request_id: str) -> None: ...

    async def encode(
        self, prompt: Any, params: PoolingParams, request_id: str, *, priority: int = 0, lora_request: Any = None
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        self._check_alive()
        self.adapters.append(lora_request)
        processed = await self.inputs.process_pooling(request_id, prompt, params, priority=priority)
        request = processed.request
        self._outputs.add(request_id, [request], None)
        self._running[request_id] = [request]
        self.most_running = max(self.most_running, len(self._running))
        self.started.append(request_id)
        self.ranks.append(processed.engine)
        try:
            await asyncio.sleep(self.delay)
            self._check_alive()
            if last := self._last_words.pop(request_id, []):
                yield pooled(last[0])
            update = _update(request_id, [], (), FinishReason.STOP)
            update.pooled_np = self._values(request)
            yield pooled(self._outputs.process([update])[0][0])
        finally:
            del self._running[request_id]
            if self._outputs.core_ids(request_id):
                self._end(request_id)

    def _values(self, request: EngineRequest) -> np.ndarray:
        """Of every token the sines of its multiples; of a text their mean."""
        spec = request.attached(PoolingSpec)
        assert spec is not None
        entries = self.config.pooling.size if spec.head == EMBED else len(self.config.pooling.labels)
        by_token = np.sin(np.outer(request.prompt_token_ids, np.arange(1, entries + 1))).astype(np.float32)
        return finished(by_token, spec) if spec.by_token else finished(by_token.mean(axis=0, keepdims=True), spec)[0]

    async def beam_search(
        self,
        prompt: Any,
        params: BeamSearchParams,
        request_id: str,
        *,
        priority: int = 0,
        skip_special_tokens: bool = True,
        lora_request: Any = None,
    ) -> AsyncIterator[RequestOutput]:
        """All beams say what one request would."""
        drawn = SamplingParams(n=params.beam_width, max_tokens=params.max_tokens, logprobs=1)
        drawn.output_kind = RequestOutputKind.FINAL_ONLY
        async for output in self.generate(prompt, drawn, request_id, priority=priority):
            yield output

    def tap(self, request_id: str, take: Any) -> None:
        """All outputs go to their readers."""

    async def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._last_words[request_id] = self._end(request_id)

    async def check_health(self) -> None:
        self._check_alive()

    def is_ready(self) -> bool:
        return self.ready and not self._death

    def last_step_age(self) -> float:
        return self.step_age

    async def engine_states(self) -> list[EngineState]:
        return [await self.engine_state()]

    async def engine_state(self) -> EngineState:
        running = [RequestView(name, len(many[0].prompt_token_ids), 0, 0, 0) for name, many in self._running.items()]
        return EngineState(
            running=running, block_owners=[0, 1, 2], block_size=16, stats=EngineStats(kv_usage=0.5), num_steps=1
        )

    def get_metrics(self) -> list[Metric]:
        return self.metrics.snapshot([EngineStats(len(self._running), 0, 0.25, 8, 4, 1)])

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return reset_running_requests or not self._running

    async def reset_encoder_cache(self) -> None:
        self.forgotten += 1

    reset_mm_cache = reset_encoder_cache

    async def pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        self.paused = mode, clear_cache

    async def resume_generation(self) -> None:
        self.paused = None

    async def is_paused(self) -> bool:
        return self.paused is not None

    async def sleep(self, level: int = 1, mode: str = "keep") -> None:
        self.slept, self.slept_after = level, mode

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.woken = tags
        self.slept = None

    async def is_sleeping(self) -> bool:
        return self.slept is not None

    async def shutdown(self, drain: bool) -> None:
        while drain and self._running:
            await asyncio.sleep(0.01)
        self._death = self._death or "the server is shutting down"
        await self.texts.close()

    def die(self, why: str = "it died three times") -> None:
        """As when the supervisor gives up."""
        self._death = why
        self.dead.set()

    def _check_alive(self) -> None:
        if self._death:
            raise EngineDeadError(self._death)

    def _end(self, request_id: str) -> list[RequestOutput]:
        """What is left of a request ends with `abort`."""
        self.aborted.append(request_id)
        left = list(self._outputs.core_ids(request_id))
        return self._outputs.process([_update(core_id, [], (), FinishReason.ABORT) for core_id in left])[0]

    def _step(self, request_id: str, step: int) -> list[RequestOutput]:
        alive = set(self._outputs.core_ids(request_id))
        updates = [self._token(child, step) for child in self._running[request_id] if child.request_id in alive]
        return self._outputs.process(updates)[0]

    def _token(self, request: EngineRequest, step: int) -> RequestUpdate:
        said = request.prompt_token_ids
        if self.script is not None:
            said = [*self.tokenizer.encode(self.script, add_special_tokens=False), self.tokenizer.special.eos_id]
        return self._say(request, step, said[step % len(said)])

    def _say(self, request: EngineRequest, step: int, token: int) -> RequestUpdate:
        reason = None
        if token in request.stop.eos_token_ids | request.stop.stop_token_ids and step >= request.stop.min_tokens:
            reason = FinishReason.STOP
        elif step + 1 == request.stop.max_tokens:
            reason = FinishReason.LENGTH
        prompt_logprobs = _prompt_logprobs(request) if step == 0 else []
        return _update(request.request_id, [token], _logprobs(token, request.params), reason, prompt_logprobs)


def _update(
    core_id: str,
    tokens: list[int],
    logprobs: Any,
    reason: FinishReason | None,
    prompt_logprobs: list[PromptLogprobs] | None = None,
) -> RequestUpdate:
    return RequestUpdate(core_id, tokens, logprobs, prompt_logprobs or [], reason, None, 0, 0, time.monotonic())


def _alternatives(token: int, count: int) -> list[int]:
    """The token itself, which is the most likely one, and the next ids after it."""
    return [token] + [(token + i) % 256 + 10 if i else token for i in range(count)]


def _logprobs(token: int, sampling: SamplingParams) -> list[TokenLogprobs]:
    if sampling.logprobs is None:
        return []
    named = sampling.logprob_token_ids
    ids = _alternatives(token, sampling.logprobs) if named is None else [token, *named]
    values = [-0.5, *(-0.5 - i for i in range(sampling.logprobs))]
    return [TokenLogprobs(np.array(ids), np.array(values, dtype=np.float32), 1)]


def _prompt_logprobs(request: EngineRequest) -> list[PromptLogprobs]:
    count = request.params.prompt_logprobs
    tokens = request.prompt_token_ids[1:]
    if count is None or not tokens:
        return []
    ids = np.array([_alternatives(token, count) for token in tokens])
    values = np.array([[-0.5, *(-0.5 - i for i in range(count))]] * len(tokens), dtype=np.float32)
    return [PromptLogprobs(1, ids, values, np.ones(len(tokens), dtype=np.int64))]
