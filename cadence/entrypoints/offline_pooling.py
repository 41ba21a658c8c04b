"""`LLM`'s calls for values in place of text: their parameters and prompts, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cadence.config.pooling import PLAIN_TEXT, PoolingConfig
from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooled_outputs import PoolingOutput, PoolingRequestOutput, pooled
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.text.pooled_options import PooledOptions
from cadence.engine.text.prompts import ParsedPrompt, PromptType, formed, parse_prompt, pinned, split_prompts, tokenised
from cadence.engine.text.unused import check_keywords
from cadence.entrypoints.offline_requests import OfflineRequests, one_each

AT_ONCE = 256  # texts that are tokenised together; the engine computes those before meanwhile

PooledPrompt = PoolingRequestOutput[PoolingOutput]


@dataclass(frozen=True, slots=True)
class PoolingCall:
    """What all calls for values may say beside their prompts."""

    params: PoolingParams | Sequence[PoolingParams] | None = None  # one for all prompts, or one each
    truncate_prompt_tokens: int | None = None
    use_tqdm: bool | Callable[..., Any] = True
    lora_request: Any = None
    extras: dict[str, Any] = field(default_factory=dict)  # vLLM's further keywords

    def params_for(self, task: str | None, count: int) -> list[PoolingParams]:
        if not isinstance(self.params, Sequence):
            return [self._settled(PoolingParams() if self.params is None else self.params, task)] * count
        if len(self.params) != count:
            raise InvalidRequestError(f"{len(self.params)} pooling_params for {count} prompts", "pooling_params")
        return [self._settled(params, task) for params in self.params]

    def _settled(self, params: PoolingParams, task: str | None) -> PoolingParams:
        if not isinstance(params, PoolingParams):
            raise InvalidRequestError(
                f"pooling_params must be PoolingParams, not {type(params).__name__}", "pooling_params"
            )
        if task and params.task and params.task != PoolingParams(task=task).task:
            raise InvalidRequestError(f"pooling_params ask to {params.task}, and this call is to {task}", "task")
        kept = params.truncate_prompt_tokens if self.truncate_prompt_tokens is None else self.truncate_prompt_tokens
        return replace(params, task=task or params.task, truncate_prompt_tokens=kept)


class OfflinePooling:
    def __init__(self, engine: LLMEngine, requests: OfflineRequests) -> None:
        self._engine = engine
        self._requests = requests

    @property
    def config(self) -> PoolingConfig:
        return self._engine.config.pooling

    @property
    def max_model_len(self) -> int:
        return self._engine.config.model.max_model_len

    def values(self, prompts: Any, task: str | None, call: PoolingCall) -> list[PooledPrompt]:
        """Of every prompt, in order, as numpy arrays."""
        extras = dict(call.extras)
        options = extras.pop("tokenization_kwargs", None) or {}
        rank, priority = extras.pop("data_parallel_rank", None), extras.pop("priority", None)
        form = self.config.form(extras.pop("prompt_name", None))
        many = split_prompts(prompts)
        if rank is not None or form != PLAIN_TEXT:
            many = [formed(pinned(prompt, rank), form) for prompt in many]
        check_keywords("LLM", extras)
        if priority is not None and len(priority) != len(many):
            raise InvalidRequestError(f"{len(priority)} priorities for {len(many)} prompts", "priority")
        params = call.params_for(task, len(many))
        adapters = one_each(call.lora_request, len(many))
        wanted = self._pooled_options(params, priority or [0] * len(many), adapters, extras)
        ids = self._requests.submit_pooled(self._tokens(many, params, options), wanted)
        return [pooled(output) for output in self._requests.run(ids, call.use_tqdm)]

    def _pooled_options(
        self,
        params: Sequence[PoolingParams],
        priorities: Sequence[int],
        adapters: Sequence[object],
        extras: dict[str, Any],
    ) -> list[PooledOptions]:
        """Of each prompt; those that are alike are checked once. Raises before anything is tokenised."""
        made: dict[tuple[int, int, int], PooledOptions] = {}
        options = []
        for param, priority, adapter in zip(params, priorities, adapters, strict=True):
            key = (id(param), priority, id(adapter))
            if key not in made:
                made[key] = self._engine.pooled_options(param, priority, adapter, extras)
            options.append(made[key])
        return options

    def _tokens(
        self, prompts: list[PromptType], params: list[PoolingParams], options: dict[str, Any]
    ) -> Iterator[PromptType]:
        """The prompts by their tokens, some at a time."""
        if options:
            yield from (tokenised(prompt, self._engine.get_tokenizer(), options) for prompt in prompts)
            return
        for start in range(0, len(prompts), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            if all(type(prompt) is str for prompt in prompts[some]) and _are_whole(params[some]):
                texts: list[Any] = prompts[some]
                token_ids = self._engine.get_tokenizer().encode_batch(texts)
                yield from map(ParsedPrompt, texts, token_ids)
            else:
                yield from self._batch([parse_prompt(prompt) for prompt in prompts[some]], params[some])

    def _batch(self, prompts: list[ParsedPrompt], params: list[PoolingParams]) -> Iterator[ParsedPrompt]:
        """Texts that may be cut are left to the engine."""
        is_plain = [
            prompt.token_ids is None and each.truncate_prompt_tokens is None
            for prompt, each in zip(prompts, params, strict=True)
        ]
        texts = [prompt.text or "" for prompt, plain in zip(prompts, is_plain, strict=True) if plain]
        token_ids = iter(self._engine.get_tokenizer().encode_batch(texts) if texts else [])
        for prompt, plain in zip(prompts, is_plain, strict=True):
            yield replace(prompt, token_ids=next(token_ids)) if plain else prompt


def _are_whole(params: Sequence[PoolingParams]) -> bool:
    """Whether no prompt is to be cut."""
    return all(each.truncate_prompt_tokens is None for each in params)


def with_tensors(outputs: list[PooledPrompt]) -> list[PooledPrompt]:
    """As scripts for vLLM read them."""
    import torch  # where there is an `LLM`, it was imported

    for output in outputs:
        output.outputs.data = torch.tensor(output.outputs.data)
    return outputs
