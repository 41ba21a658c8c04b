"""Turns a prompt and parameters into a complete, checked `EngineRequest`, or raises one clear error."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cadence.config.pooling import TextForm
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.errors import ContextLengthError, InvalidRequestError
from cadence.core.grammar import NO_DEFAULTS, GrammarSpec
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.inputs.attachments import Attachment
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.inputs.media import MediaInput
from cadence.core.lora_request import adapter_of
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.sampling_params import SamplingParams
from cadence.core.shown import shown
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.open_prompts import prompts_of
from cadence.engine.text.pooled_options import NO_SAMPLING, PooledOptions
from cadence.engine.text.prompts import ParsedPrompt, parse_prompt
from cadence.engine.text.token_ids import check_range, integers
from cadence.text.cut_texts import encode_cut
from cadence.text.null_tokenizer import AnyTokenizer
from cadence.text.service.loop_share import LEAST

_MASK64 = (1 << 64) - 1
_INT64 = 1 << 63
NEVER_STOPS = StopRule(eos_token_ids=frozenset(), stop_token_ids=frozenset(), min_tokens=0, max_tokens=1)
THINKING = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    request: EngineRequest
    prompt_text: str | None
    engine: int | None  # of several, the one that it is for; None = any


def weight_of(params: SamplingParams) -> int:
    """What checking and copying parameters takes: entries of their lists, and characters."""
    lists = (params.allowed_token_ids, params.stop_token_ids, params.logit_bias)
    texts = (*(params.bad_words or ()), *params.stop_strings)
    if params.structured_outputs is not None:
        texts = (*texts, params.structured_outputs.spec(NO_DEFAULTS).text)
    return sum(len(entries or ()) for entries in lists) + sum(map(len, texts))


def spelling_size(bad_words: list[str]) -> int:
    """Characters that are tokenised for bad words, as a turn of an event loop counts them: each has two spellings."""
    return sum(2 * max(len(word), LEAST) for word in bad_words)


def checked_rank(rank: object, num_engines: int, name: str = "data_parallel_rank") -> int | None:
    """name: where it was given"""
    if rank is None:
        return None
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < num_engines:
        allowed = f"an integer from 0 to {num_engines - 1}" if num_engines > 1 else "0: there is one engine"
        raise InvalidRequestError(f"{name} must be {allowed}; got {shown(rank)}", name)
    return rank


def check_priority(priority: int) -> None:
    if not -_INT64 <= priority < _INT64:
        raise InvalidRequestError("priority must be an integer of 64 bits", "priority")


class InputProcessor:
    def __init__(self, limits: InputLimits, tokenizer: AnyTokenizer) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self.prompts = prompts_of(limits.encoder, limits.media, limits.vocab_size, tokenizer)
        self.weights: Mapping[str, float] = {}  # of tenants; those that are not named have 1
        self._counter = itertools.count()
        self._spelled: tuple[list[str], list[list[int]]] = ([], [])  # the last bad words, and their tokens

    def process(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        priority: int = 0,
        cap_logprobs: bool = True,
        lora_request: object = None,
    ) -> ProcessedInput:
        adapter = adapter_of(lora_request, self._limits.adapters)
        parsed = parse_prompt(prompt)
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
        self._limits.pooling.check_writes()
        limits = self._limits
        check_priority(priority)
        checks = (limits.vocab_size, limits.max_logprobs if cap_logprobs else -1, limits.max_model_len)
        params.verify(*checks)
        prepared = self.prepared(parsed)
        token_ids, content = prepared.token_ids or [], prepared.source
        _check_prompt_logprobs(params, content)
        sampling = params.clone()
        sampling.logprobs = _at_most(limits.vocab_size, sampling.logprobs)
        sampling.prompt_logprobs = _at_most(limits.vocab_size, sampling.prompt_logprobs)
        sampling.bad_words_token_ids = self._barred(sampling)
        sampling.thinking_token_ids = self._thinking(sampling)
        grammar, sampling.structured_outputs = self._grammar(sampling), None
        if sampling.bad_words_token_ids or sampling.thinking_token_ids:
            sampling.verify(*checks)  # the engine repeats these checks when it reads the request, and must find nothing
        self._check_choice(sampling)
        request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=sampling,
            stop=self._stop_rule(sampling, len(token_ids)),
            seed=self._seed(sampling),
            arrival_time=time.monotonic(),
            priority=priority,
            cache_salt=parsed.cache_salt,
            tenant=parsed.tenant,
            weight=self.weights.get(parsed.tenant, 1.0),
            attachments=tuple(each for each in (grammar, adapter, content) if isinstance(each, Attachment)),
            output_token_ids=parsed.output_token_ids,
        )
        engine = checked_rank(parsed.data_parallel_rank, limits.num_engines)
        return ProcessedInput(request=request, prompt_text=parsed.text, engine=engine)

    def process_pooling(
        self,
        request_id: str,
        prompt: Any,
        params: PoolingParams,
        priority: int = 0,
        lora_request: object = None,
    ) -> ProcessedInput:
        """Parameters without a task have the model's first."""
        return self.process_pooled(request_id, prompt, self.pooled_options(params, priority, lora_request))

    def pooled_options(
        self, params: PoolingParams, priority: int = 0, lora_request: object = None, warnings: Sequence[str] = ()
    ) -> PooledOptions:
        """What one request, or each of several, wants of its prompt."""
        adapter = adapter_of(lora_request, self._limits.adapters)
        check_priority(priority)
        return PooledOptions(
            spec=self._limits.pooling.spec(params),
            adapter=adapter,
            sampling=NO_SAMPLING[params.skip_reading_prefix_cache],
            kept=self.kept_tokens(params),
            priority=priority,
            lora_request=lora_request,
            warnings=warnings,
        )

    def process_pooled(self, request_id: str, prompt: Any, options: PooledOptions) -> ProcessedInput:
        parsed = self.prompts.divided(parse_prompt(prompt))
        spec, token_ids = options.spec, self._pooled_tokens(parsed, options.kept)
        if parsed.second_from:
            spec = replace(spec, second_from=_checked_place(parsed.second_from, len(token_ids)))
        given = options.attachments(spec, parsed.source)
        return self._without_tokens(request_id, parsed, token_ids, options.sampling, given, options.priority)

    def process_alignment(
        self, request_id: str, prompt: Any, spec: AlignmentSpec, priority: int = 0, lora_request: object = None
    ) -> ProcessedInput:
        """prompt: what the encoder reads, and the tokens that are looked for in it after what the decoder begins with.
        They may be as many as the model's context: no token comes after them."""
        adapter = adapter_of(lora_request, self._limits.adapters)
        parsed = self.prompts.divided(parse_prompt(prompt))
        check_priority(priority)
        token_ids, content = self.token_ids(parsed, room=0), parsed.source
        if not isinstance(content, EncoderInput):
            raise InvalidRequestError(spec.lacking, "prompt")
        if spec.first >= len(token_ids) or not 1 <= spec.positions <= content.length or not spec.heads:
            raise InvalidRequestError("an alignment needs tokens, positions and heads within those there are", "prompt")
        given = (content, spec) if adapter is None else (content, spec, adapter)
        return self._without_tokens(request_id, parsed, token_ids, NO_SAMPLING[None], given, priority)

    def _without_tokens(
        self,
        request_id: str,
        parsed: ParsedPrompt,
        token_ids: list[int],
        sampling: SamplingParams,
        attachments: tuple[Attachment, ...],
        priority: int,
    ) -> ProcessedInput:
        """One that gets values in their place. sampling: one of `NO_SAMPLING`"""
        request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=sampling,
            stop=NEVER_STOPS,
            seed=0,
            arrival_time=time.monotonic(),
            priority=priority,
            cache_salt=parsed.cache_salt,
            tenant=parsed.tenant,
            weight=self.weights.get(parsed.tenant, 1.0),
            attachments=attachments,
        )
        engine = checked_rank(parsed.data_parallel_rank, self._limits.num_engines)
        return ProcessedInput(request, parsed.text, engine)

    def _pooled_tokens(self, parsed: ParsedPrompt, kept: int) -> list[int]:
        """A prompt may be as long as the model's context: no token comes after it."""
        if not kept:
            return self.token_ids(parsed, room=0)
        if isinstance(parsed.source, MediaInput) and kept < parsed.source.items[-1].end:
            message = f"truncate_prompt_tokens is {kept}: what stands among the prompt's tokens goes further"
            raise InvalidRequestError(message, "truncate_prompt_tokens")
        if parsed.token_ids is None:
            (token_ids,) = encode_cut(self._tokenizer.loaded(), [parsed.text or ""], kept)
        else:
            token_ids = list(parsed.token_ids[:kept])
        return self.token_ids(replace(parsed, text=None, token_ids=token_ids), room=0)

    def kept_tokens(self, params: PoolingParams) -> int:
        """Of a prompt at most; 0 = all, and one that is too long is refused."""
        kept, most = params.truncate_prompt_tokens, self._limits.max_model_len
        if kept is None:
            return 0
        if kept == 0 or kept > most:
            message = f"truncate_prompt_tokens is {kept}: give -1, or 1 to {most}, which this model takes at most"
            raise InvalidRequestError(message, "truncate_prompt_tokens")
        return most if kept == -1 else kept

    @property
    def text_form(self) -> TextForm:
        """Of texts of which values are asked for."""
        return self._limits.pooling.form()

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._limits.eos_token_ids

    def prepared(self, parsed: ParsedPrompt) -> ParsedPrompt:
        """By the tokens that the model begins with, and what its encoder reads, checked as for a request."""
        divided = self.prompts.divided(parsed)
        return replace(divided, token_ids=self.token_ids(divided))

    def token_ids(self, parsed: ParsedPrompt, room: int = 1) -> list[int]:
        """room: tokens that must be left after it"""
        if parsed.token_ids is None:
            token_ids = self._tokenizer.encode(parsed.text or "")
        else:
            self._check_length(len(parsed.token_ids), room)  # before they are looked at
            token_ids = integers(parsed.token_ids)
        check_range(token_ids, self._limits.vocab_size)
        self._check_length(len(token_ids), room)
        return token_ids

    def _check_length(self, count: int, room: int) -> None:
        if not count:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token", "prompt")
        if count + room > self._limits.max_model_len:
            raise ContextLengthError(self._limits.max_model_len, count, room)

    def _stop_rule(self, params: SamplingParams, prompt_len: int) -> StopRule:
        room = self._limits.max_model_len - prompt_len
        if params.stop and not params.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", "stop")
        if params.stop:
            self._tokenizer.require("stop and bad_words", "stop")
        return StopRule(
            eos_token_ids=frozenset() if params.ignore_eos else self._limits.eos_token_ids,
            stop_token_ids=frozenset(params.stop_token_ids or ()),
            min_tokens=params.min_tokens,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        )

    def _seed(self, params: SamplingParams) -> int:
        """The user's, or one derived from the engine's seed and the order of arrival."""
        if params.seed is not None:
            return params.seed & _MASK64
        return _mix((self._limits.seed << 32) + next(self._counter))

    def _check_choice(self, params: SamplingParams) -> None:
        """A first token must be left to choose. Where none is left later, the request ends with an error then."""
        if params.allowed_token_ids is None and not params.bad_words:
            return
        allowed: Iterable[int] = params.allowed_token_ids or range(self._limits.vocab_size)
        barred = {word[0] for word in params.bad_words_token_ids or () if len(word) == 1}
        if barred.issuperset(allowed):
            raise InvalidRequestError("bad_words bar every token that could be chosen", "bad_words")
        if params.min_tokens > 0:
            barred |= set(params.stop_token_ids or ())
            barred |= frozenset() if params.ignore_eos else self._limits.eos_token_ids
            if barred.issuperset(allowed):
                message = "min_tokens bars the tokens that end the output, and no other token could be chosen"
                raise InvalidRequestError(message, "min_tokens")

    def _thinking(self, params: SamplingParams) -> list[list[int]] | None:
        """What begins and ends reasoning: as the request says, or as most models write it."""
        if params.thinking_token_budget is None or params.thinking_token_ids is not None:
            return params.thinking_token_ids
        begin, end = map(self._tokenizer.single_token, THINKING)
        if begin is None or end is None:
            raise InvalidRequestError(
                f"thinking_token_budget needs to know how this model marks its reasoning: {THINKING[0]} and "
                f"{THINKING[1]} are no tokens of it; servers know by --reasoning-parser",
                "thinking_token_budget",
            )
        return [[begin], [end]]

    def _grammar(self, params: SamplingParams) -> GrammarSpec | None:
        """What the output must be, with what the engine says of it."""
        if params.structured_outputs is None:
            return None
        spec = params.structured_outputs.spec(self._limits.structured)
        self._tokenizer.require("structured outputs", spec.source)
        return spec

    def _barred(self, params: SamplingParams) -> list[list[int]] | None:
        """What the request rules out, and what the model's files do."""
        words, always = self._bad_words(params), self._limits.encoder.barred
        return [*(words or ()), *map(list, always)] if always else words

    def _bad_words(self, params: SamplingParams) -> list[list[int]] | None:
        """Each word as it is spelled at the start of a text and, where it differs, after a space. White space alone is
        taken as it stands."""
        if not params.bad_words:
            return None
        self._tokenizer.require("stop and bad_words", "stop")
        known, sequences = self._spelled  # prompts of one request come one after the other, with the same words
        if params.bad_words != known:
            sequences = self._spell(params.bad_words)
            self._spelled = (params.bad_words, sequences)
        return sequences

    def _spell(self, bad_words: list[str]) -> list[list[int]]:
        tokenizer = self._tokenizer
        sequences: list[list[int]] = []
        for number, word in enumerate(bad_words):
            bare = tokenizer.encode(word.lstrip() or word, add_special_tokens=False)
            if not bare:
                raise InvalidRequestError(f"bad_words[{number}] is no token of this model: {word[:40]!r}", "bad_words")
            sequences.append(bare)
            if word.isspace():
                continue
            spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            if spaced != bare and len(spaced) == len(bare):
                sequences.append(spaced)
        return sequences


def _checked_place(place: int, count: int) -> int:
    """Of the second text among so many tokens."""
    if place >= count:
        raise InvalidRequestError(f"second_from is {place}, and the prompt has {count} tokens", "second_from")
    return place


def _check_prompt_logprobs(params: SamplingParams, content: object) -> None:
    if params.prompt_logprobs is not None and isinstance(content, MediaInput) and content.has_vectors:
        raise InvalidRequestError(
            "prompt_logprobs cannot be used with prompt_embeds: vectors are no tokens", "prompt_logprobs"
        )


def _at_most(limit: int, value: int | None) -> int | None:
    return None if value is None else min(value, limit)


def _mix(value: int) -> int:
    """A 64-bit finaliser: neighbouring inputs give unrelated seeds."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
