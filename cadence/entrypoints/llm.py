"""`LLM`: run a model from Python, offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs
from cadence.config.args import names as option_names
from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.core.outputs import BeamSearchOutput, RequestOutput
from cadence.core.pooled.pooled_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.refusals import without_frames
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.metrics.metric import Metric
from cadence.engine.missing import missing_attribute
from cadence.engine.profiler import Profiler
from cadence.engine.text.beam import BeamSearch, LiveBeam, run_rounds
from cadence.engine.text.prompts import ParsedPrompt, PromptType, TokensPrompt, pinned, split_prompts, tokenised
from cadence.engine.text.unused import check_keywords
from cadence.entrypoints.conversation import chat_prompt, read_template, split_conversations
from cadence.entrypoints.media.offline import OfflineMedia, with_media
from cadence.entrypoints.media.pending import NOTHING_SAID
from cadence.entrypoints.offline_control import OfflineControl
from cadence.entrypoints.offline_pooling import OfflinePooling, PoolingCall, with_tensors
from cadence.entrypoints.offline_requests import OfflineRequests, one_each
from cadence.entrypoints.offline_scoring import OfflineScoring, ScoredPairs
from cadence.entrypoints.progress import open_progress
from cadence.text.chat_template import ChatRequest
from cadence.text.chats import Chats, chats_for
from cadence.text.tokenizer import Tokenizer

ParamsType = SamplingParams | Sequence[SamplingParams] | None
PoolingType = PoolingParams | Sequence[PoolingParams] | None  # one for all prompts, or one each
LoraType = LoRARequest | Sequence[LoRARequest | None] | None  # one for all prompts, or one each


class LLM(OfflineControl):
    """Loads a model once, then generates for as many prompts as you give it.

    `model` is a directory, a .gguf file, a hub id, or an alias such as "smollm2"; all other options are the
    fields of `EngineArgs` (docs/using/python.md lists them). `logits_processors` are applied to the logits of every
    request: callables, `LogitsProcessor` classes, or texts `module:name` that lead to one. `profiler_config` says where
    `start_profile` writes its traces.

    Weights, KV cache and threads are given back by `shutdown()`, by leaving `with LLM(...) as llm:`, or when the last
    reference goes.
    """

    @without_frames
    def __init__(
        self,
        model: str,
        *,
        logits_processors: Sequence[Callable[..., Any] | str] | None = None,
        profiler_config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._profiler = Profiler(profiler_config or {})
        if profiler_config and options.get("data_parallel_size", 1) != 1:
            raise ConfigError(
                "profiler_config: profiles are taken in this process, where one engine runs; use data_parallel_size=1",
                "profiler_config",
            )
        args = peer_env.applied(EngineArgs.from_options(model=model, **options), env.peer_variables())
        self._chat_template = read_template(args.chat_template or "")
        self.llm_engine = LLMEngine.from_engine_args(args, logits_processors=logits_processors or ())
        if self.llm_engine.config.tokenizer.escape_control_tokens:
            self._chats.check_template(self._chat_template)
        self._requests = OfflineRequests(self.llm_engine)
        self._pooling = OfflinePooling(self.llm_engine, self._requests)

    @classmethod
    @without_frames
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        return cls(**{name: getattr(engine_args, name) for name in option_names()})

    @without_frames
    def generate(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        sampling_params: ParamsType = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoraType = None,
        priority: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **extras: Any,
    ) -> list[RequestOutput]:
        """Completes every prompt; outputs come in the order of the prompts. `prompt_token_ids` is the older way to
        give prompts as tokens; `extras` are vLLM's further keywords (tokenization_kwargs, ...)."""
        if prompts is None:
            prompts = prompt_token_ids  # type: ignore[assignment]
        elif prompt_token_ids is not None:
            raise InvalidRequestError("give prompts or prompt_token_ids, not both", "prompt_token_ids")
        return self._requests.run(self._accept(prompts, sampling_params, priority, lora_request, extras), use_tqdm)

    @without_frames
    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingType = None,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoraType = None,
        pooling_task: str | None = None,
        **extras: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model makes of every prompt in place of text: tensors, one of each prompt."""
        call = PoolingCall(pooling_params, truncate_prompt_tokens, use_tqdm, lora_request, extras)
        return with_tensors(self._pooling.values(prompts, pooling_task, call))

    @without_frames
    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingType = None,
        lora_request: LoraType = None,
        **extras: Any,
    ) -> list[EmbeddingRequestOutput]:
        """One vector of every prompt."""
        call = PoolingCall(pooling_params, truncate_prompt_tokens, use_tqdm, lora_request, extras)
        return [EmbeddingRequestOutput.from_base(output) for output in self._pooling.values(prompts, "embed", call)]

    @without_frames
    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingType = None,
        lora_request: LoraType = None,
        **extras: Any,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of the model's classes for every prompt."""
        call = PoolingCall(pooling_params, extras.pop("truncate_prompt_tokens", None), use_tqdm, lora_request, extras)
        found = self._pooling.values(prompts, "classify", call)
        return [ClassificationRequestOutput.from_base(output) for output in found]

    @without_frames
    def reward(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingType = None,
        lora_request: LoraType = None,
        **extras: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a reward model says of the tokens of every prompt."""
        call = PoolingCall(pooling_params, truncate_prompt_tokens, use_tqdm, lora_request, extras)
        return with_tensors(self._pooling.values(prompts, "token_classify", call))

    @without_frames
    def score(
        self,
        data_1: PromptType | Sequence[PromptType],
        data_2: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        chat_template: str | None = None,
        **extras: Any,
    ) -> list[ScoringRequestOutput]:
        """How well each text of `data_2` goes with the one of `data_1`, or with the one in its place there."""
        call = PoolingCall(pooling_params, extras.pop("truncate_prompt_tokens", None), use_tqdm, lora_request, extras)
        scoring = OfflineScoring(self._pooling, self.get_tokenizer, self.chat_prompt, self._chat_template)
        return scoring.scores(ScoredPairs.of(data_1, data_2), call, read_template(chat_template or ""))

    @without_frames
    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: ParamsType = None,
        lora_request: LoraType = None,
        priority: Sequence[int] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        **extras: Any,
    ) -> list[str]:
        """Takes prompts in and returns their request ids at once; `wait_for_completion` brings the outputs."""
        ids = self._accept(prompts, sampling_params, priority, lora_request, extras)
        self._requests.enqueue(ids)
        return ids

    @without_frames
    def wait_for_completion(
        self, output_type: object = None, *, use_tqdm: bool | Callable[..., Any] = True
    ) -> list[RequestOutput]:
        """The outputs of all that was enqueued since the last call, in that order."""
        return self._requests.run(self._requests.take_enqueued(), use_tqdm)

    @without_frames
    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: ParamsType = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoraType = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **extras: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or a list of them."""
        chats = [
            ChatRequest(
                messages=conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=chat_template_kwargs or {},
            )
            for conversation in split_conversations(messages)
        ]
        processor = extras.pop("mm_processor_kwargs", None) or {}
        prompts: list[PromptType] = [self.chat_prompt(chat, chat_template or "", processor) for chat in chats]
        if chat_template_content_format != "auto":
            extras["chat_template_content_format"] = chat_template_content_format
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, **extras)

    def chat_prompt(
        self, chat: ChatRequest, chat_template: str = "", processor: Mapping[str, Any] = NOTHING_SAID
    ) -> TokensPrompt:
        """The prompt a conversation becomes: by the template given, the engine's, or the model's own. processor:
        `mm_processor_kwargs`"""
        chat, media = self._media.split(chat, processor)
        return with_media(chat_prompt(self._chats, chat, chat_template or self._chat_template), media)

    @cached_property
    def _media(self) -> OfflineMedia:
        return OfflineMedia(self.llm_engine.config.intake, self.llm_engine.placeholders)

    @cached_property
    def _chats(self) -> Chats:
        return chats_for(self.get_tokenizer(), self.llm_engine.config.tokenizer.escape_control_tokens)

    @without_frames
    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: LoraType = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best continuations of every prompt; `concurrency_limit` bounds prompts searched at once."""
        engine = self.llm_engine
        search = BeamSearch(engine.config.model.max_model_len, engine.eos_token_ids, params)
        many = [engine.prepared(prompt) for prompt in split_prompts(prompts)]
        token_lists = [prompt.token_ids or [] for prompt in many]
        adapters = one_each(lora_request, len(many))
        at_once = concurrency_limit or len(many)
        outputs: list[BeamSearchOutput] = []
        with open_progress(use_tqdm, len(many)) as progress:
            for start in range(0, len(many), at_once):
                some = slice(start, start + at_once)
                probe = partial(self._probe, prompts=many[some], adapters=adapters[some])
                for output in run_rounds(search, token_lists[some], probe):
                    for beam in output.sequences:
                        beam.text = self.get_tokenizer().decode(beam.tokens)
                    outputs.append(output)
                    progress.advance()
        return outputs

    def get_tokenizer(self) -> Tokenizer:
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation config asks for."""
        return self.llm_engine.default_sampling_params()

    def get_metrics(self) -> list[Metric]:
        return self.llm_engine.get_metrics()

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """From here to `stop_profile`, what torch computes goes into a trace."""
        self._profiler.start(self.llm_engine.config.device.kind, profile_prefix)

    def stop_profile(self) -> None:
        """Writes the trace into the folder of `profiler_config`."""
        self._profiler.stop()

    def shutdown(self) -> None:
        """Gives back all that the model holds, of the device's memory and of the host's. Every later request is an
        EngineDeadError; a second call does nothing."""
        self.llm_engine.shutdown()
        self._weights.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute("LLM", name)

    def _accept(
        self,
        prompts: Any,
        params: ParamsType,
        priority: Sequence[int] | None,
        lora_request: LoraType,
        extras: dict[str, Any],
    ) -> list[str]:
        options = extras.pop("tokenization_kwargs", None) or {}
        rank = extras.pop("data_parallel_rank", None)
        check_keywords("LLM", extras)
        many = [pinned(prompt, rank) for prompt in self._tokenised(split_prompts(prompts), options)]
        if priority is not None and len(priority) != len(many):
            raise InvalidRequestError(f"{len(priority)} priorities for {len(many)} prompts", "priority")
        adapters = one_each(lora_request, len(many))
        each = self._params_for(params, len(many))
        return self._requests.submit(many, each, priority or [0] * len(many), adapters, extras)

    def _tokenised(self, prompts: list[PromptType], options: dict[str, Any]) -> list[PromptType]:
        return [tokenised(prompt, self.get_tokenizer(), options) for prompt in prompts] if options else prompts

    def _params_for(self, params: ParamsType, count: int) -> list[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, (SamplingParams, PoolingParams)):
            return [_final_only(params)] * count
        if len(params) != count:
            raise InvalidRequestError(f"{len(params)} sampling_params for {count} prompts", "sampling_params")
        return [_final_only(each) for each in params]

    def _probe(
        self,
        beams: list[LiveBeam],
        params: SamplingParams,
        prompts: Sequence[ParsedPrompt],
        adapters: Sequence[object],
    ) -> list[RequestOutput]:
        """One round of beam search: what a prompt says beside its text holds for its beams. Their logprobs are not the
        user's, so the cap on those does not apply."""
        ids = [self._requests.new_id() for _ in beams]
        with self._requests.dropped_on_error(ids):
            for request_id, beam in zip(ids, beams, strict=True):
                prompt = replace(prompts[beam.prompt], text=None, token_ids=beam.tokens)
                adapter = adapters[beam.prompt]
                self.llm_engine.add_request(request_id, prompt, params, lora_request=adapter, cap_logprobs=False)
        return self._requests.run(ids, use_tqdm=False)


def _final_only(params: SamplingParams) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
    final = params.clone()
    final.output_kind = RequestOutputKind.FINAL_ONLY
    return final
