"""How the tokens of one request are chosen, under vLLM's names. Checked when made, so what exists is valid."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from typing import Any, Self

from cadence.core.checks import (
    callables,
    draft_limit,
    integer,
    invalid,
    logit_bias,
    logprobs_count,
    number,
    strings,
    token_ids,
    typed,
    within_logprobs_cap,
)
from cadence.core.errors import InvalidRequestError
from cadence.core.repetition import RepetitionDetectionParams
from cadence.core.speech_rules import SpeechRules
from cadence.core.structured_outputs import StructuredOutputsParams

logger = logging.getLogger(__name__)

GREEDY_BELOW = 1e-5  # a lower temperature means: the most likely token
MIN_TEMPERATURE = 0.01  # temperatures between the two are raised to this, or logits / temperature overflows
POSITIONAL = 16  # fields from n to prompt_logprobs stand in the order vLLM has them
MAX_N = 16_384  # completions of one prompt
MAX_LOGPROB_IDS = 128  # tokens whose logprobs are asked for by id
# Beyond these a temperature makes all tokens alike and a penalty decides alone; float32 holds them times any logit.
_EXTREME = 1e30

LogitsProcessor = Callable[..., Any]


def is_on_device(processor: LogitsProcessor) -> bool:
    """Whether a logits processor works on whole batches on the device; others are called by the host, line by line."""
    return bool(getattr(processor, "on_device", False))


class RequestOutputKind(Enum):
    CUMULATIVE = 0  # each output holds everything so far
    DELTA = 1  # each output holds what is new
    FINAL_ONLY = 2  # one output, at the end


# Names that exist in vLLM and mean nothing here yet: name -> why. Their default (None, False or 0) is accepted.
MAX_LENGTH_PENALTY = 40.0  # either way: ten million tokens to this power are a float
_REFUSED = {
    "best_of": "it was removed from vLLM; ask for n completions and choose among them",
    "routed_experts_prompt_start": "this engine does not return routed experts",
    "trace_decode_token_ids": "this engine does not replay traces",
    "truncate_prompt_tokens": "prompts are never shortened silently; cut the prompt before sending it",
    "use_beam_search": "call LLM.beam_search with BeamSearchParams",
    "length_penalty": "call LLM.beam_search with BeamSearchParams",
    "early_stopping": "call LLM.beam_search with BeamSearchParams",
}


@dataclass(slots=True)
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None  # a list once made
    stop_token_ids: list[int] | None = None  # a list once made
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None = until the model's length
    min_tokens: int = 0
    logprobs: int | None = None  # -1 = the whole vocabulary
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None  # a list once made
    extra_args: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool | None = None  # always True with prompt_logprobs
    logits_processors: list[LogitsProcessor] | None = None
    thinking_token_budget: int | None = None  # most tokens of reasoning; None or -1 = no limit
    repetition_detection: RepetitionDetectionParams | None = None  # None once made where it asks for nothing
    logprob_token_ids: list[int] | None = None  # logprobs of these tokens instead of the most likely ones
    speculative: dict[str, int] | None = None  # {"num_tokens": most drafts of a forward}; 0 = off, None = the engine's
    flat_logprobs: bool = False  # logprobs as one FlatLogprobs instead of one dict per position
    structured_outputs: StructuredOutputsParams | None = None  # also its fields as a dict: what the output must be
    guided_decoding: StructuredOutputsParams | None = None  # its older name; None once made
    bad_words_token_ids: list[list[int]] | None = None  # not for users: bad_words, tokenised by the input processor
    # Not for users: the tokens that begin and that end reasoning. Where none begins it, it begins with the output.
    thinking_token_ids: list[list[int]] | None = None
    speech_rules: SpeechRules | None = None  # not for users: what a transcript may go on with
    skip_clone: bool = False
    # Refused unless left at their default, see _REFUSED.
    best_of: object = None
    routed_experts_prompt_start: object = 0
    trace_decode_token_ids: object = None
    truncate_prompt_tokens: object = None
    use_beam_search: object = False
    length_penalty: object = None
    early_stopping: object = False

    def __new__(cls, *args: object, **options: object) -> Self:
        _known_names(cls, args, options)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._check_refused()
        self._check_counts()
        self._check_probabilities()
        self._check_logprobs()
        self._check_stops()
        self._check_ends()
        self._check_token_lists()
        self._check_rest()
        self._settle_greedy()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> list[str]:
        """`stop`, under the type it has once made."""
        return list(self.stop or ())

    def num_draft_tokens(self, most: int) -> int:
        """Most drafts of a forward for this request, of `most` that the engine makes."""
        return most if self.speculative is None else min(most, self.speculative["num_tokens"])

    def clone(self) -> SamplingParams:
        """A copy that shares no list or dict with this one (callables and extra_args' values are shared).

        As it stands: nothing is checked or settled again.
        """
        copy = object.__new__(SamplingParams)
        for put, value in zip(_PUTS, _values(self), strict=True):
            put(copy, _copied(value) if isinstance(value, (list, dict)) else value)
        return copy

    def verify(self, vocab_size: int, max_logprobs: int, max_model_len: int) -> None:
        """The checks that need the engine; also repeats the others, since fields may have been assigned to."""
        self.__post_init__()
        within_logprobs_cap("prompt_logprobs", self.prompt_logprobs, vocab_size, max_logprobs)
        if self.logprob_token_ids is None:
            within_logprobs_cap("logprobs", self.logprobs, vocab_size, max_logprobs)
        token_lists: dict[str, Sequence[int]] = {
            "logit_bias": list(self.logit_bias or ()),
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids or (),
            "bad_words": [token for word in self.bad_words_token_ids or () for token in word],
            "logprob_token_ids": self.logprob_token_ids or (),
            "thinking_token_ids": [token for mark in self.thinking_token_ids or () for token in mark],
            "speech_rules": (self.speech_rules.largest_id,) if self.speech_rules else (),
        }
        for name, tokens in token_lists.items():
            if tokens and max(tokens) >= vocab_size:
                raise invalid(name, max(tokens), f"a token id below the vocabulary size {vocab_size}")
        if self.min_tokens >= max_model_len:
            raise invalid("min_tokens", self.min_tokens, f"below max_model_len ({max_model_len})")

    def _check_refused(self) -> None:
        for name, why in _REFUSED.items():
            value = getattr(self, name)
            if value not in (None, False, 0):
                raise InvalidRequestError(f"{name}={value!r} is not supported: {why}.", field=name)

    def _check_counts(self) -> None:
        self.n = integer("n", self.n, low=1, high=MAX_N)
        self.min_tokens = integer("min_tokens", self.min_tokens, low=0)
        self.top_k = max(integer("top_k", self.top_k, low=-1), 0)
        if self.max_tokens is not None:
            self.max_tokens = integer("max_tokens", self.max_tokens, low=1)
            if self.min_tokens > self.max_tokens:
                raise invalid("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        if self.stream_interval is not None:
            self.stream_interval = integer("stream_interval", self.stream_interval, low=1)
        if self.seed is not None:
            seed = integer("seed", self.seed, low=-(2**63), high=2**64 - 1)
            self.seed = None if seed == -1 else seed

    def _check_probabilities(self) -> None:
        self.presence_penalty = number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.repetition_penalty = number("repetition_penalty", self.repetition_penalty, 0.0)
        if self.repetition_penalty == 0.0:
            raise invalid("repetition_penalty", self.repetition_penalty, "greater than 0")
        self.repetition_penalty = min(max(self.repetition_penalty, 1 / _EXTREME), _EXTREME)
        self.temperature = min(number("temperature", self.temperature, 0.0), _EXTREME)
        self.min_p = number("min_p", self.min_p, 0.0, 1.0)
        self.top_p = number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise invalid("top_p", self.top_p, "greater than 0 and at most 1")

    def _check_logprobs(self) -> None:
        self.logprobs = logprobs_count("logprobs", self.logprobs)
        self.prompt_logprobs = logprobs_count("prompt_logprobs", self.prompt_logprobs)
        self.logprob_token_ids = token_ids("logprob_token_ids", self.logprob_token_ids) or None
        if self.logprob_token_ids is None:
            return
        count = len(self.logprob_token_ids)
        if count > MAX_LOGPROB_IDS:
            raise invalid("logprob_token_ids", self.logprob_token_ids, f"a list of at most {MAX_LOGPROB_IDS} token ids")
        if self.logprobs not in (None, count):
            raise invalid("logprobs", self.logprobs, f"None or {count}, the number of logprob_token_ids")
        self.logprob_token_ids = list(dict.fromkeys(self.logprob_token_ids))
        self.logprobs = len(self.logprob_token_ids)

    def _check_stops(self) -> None:
        self.stop = strings("stop", [self.stop] if isinstance(self.stop, str) else self.stop)
        self.bad_words = list(dict.fromkeys(strings("bad_words", self.bad_words)))
        self.stop_token_ids = token_ids("stop_token_ids", self.stop_token_ids)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True; stop_token_ids do not.", field="stop")

    def _check_ends(self) -> None:
        if self.thinking_token_budget is not None:
            budget = integer("thinking_token_budget", self.thinking_token_budget, low=-1)
            self.thinking_token_budget = None if budget == -1 else budget
        self.repetition_detection = RepetitionDetectionParams.of(self.repetition_detection)
        self.speculative = draft_limit("speculative", self.speculative)
        self.speech_rules = SpeechRules.of(self.speech_rules)
        older = StructuredOutputsParams.of(self.guided_decoding, "guided_decoding")
        newer = StructuredOutputsParams.of(self.structured_outputs, "structured_outputs")
        if older is not None and newer is not None:
            raise InvalidRequestError("guided_decoding is structured_outputs' older name: give one.", "guided_decoding")
        self.structured_outputs, self.guided_decoding = newer or older, None

    def _check_token_lists(self) -> None:
        if self.logit_bias is not None:
            self.logit_bias = logit_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = list(dict.fromkeys(token_ids("allowed_token_ids", self.allowed_token_ids)))
            if not self.allowed_token_ids:
                raise invalid("allowed_token_ids", [], "a list of at least one token id, or None")
        if self.bad_words_token_ids is not None:
            self.bad_words_token_ids = [token_ids("bad_words_token_ids", word) for word in self.bad_words_token_ids]
            if not all(self.bad_words_token_ids):
                raise invalid("bad_words_token_ids", self.bad_words_token_ids, "lists of at least one token id")
        if self.thinking_token_ids is not None:
            self.thinking_token_ids = [token_ids("thinking_token_ids", mark) for mark in self.thinking_token_ids]
            if len(self.thinking_token_ids) != 2 or not self.thinking_token_ids[1]:
                raise invalid("thinking_token_ids", self.thinking_token_ids, "the tokens of a beginning and of an end")

    def _check_rest(self) -> None:
        for name in _BOOLEANS:
            typed(name, getattr(self, name), bool, "True or False")
        typed("output_kind", self.output_kind, RequestOutputKind, "a RequestOutputKind")
        if self.skip_reading_prefix_cache is not None:
            typed("skip_reading_prefix_cache", self.skip_reading_prefix_cache, bool, "True, False or None")
        # A prompt token found in the cache has no hidden state to take its logprob from.
        self.skip_reading_prefix_cache = bool(self.skip_reading_prefix_cache) or self.prompt_logprobs is not None
        if self.extra_args is not None:
            typed("extra_args", self.extra_args, dict, "a dict or None")
        if self.logits_processors is not None:
            self.logits_processors = callables("logits_processors", self.logits_processors)

    def _settle_greedy(self) -> None:
        if self.greedy:
            if self.n > 1:
                raise invalid("n", self.n, "1 when temperature is 0: greedy completions would all be the same")
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            logger.warning("temperature %s is raised to %s; use 0 for greedy", self.temperature, MIN_TEMPERATURE)
            self.temperature = MIN_TEMPERATURE


_NAMES = tuple(f.name for f in fields(SamplingParams))
_values = operator.attrgetter(*_NAMES)
_PUTS = tuple(getattr(SamplingParams, name).__set__ for name in _NAMES)
_BOOLEANS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "flat_logprobs",
    "skip_clone",
)


@dataclass(slots=True)
class BeamSearchParams:
    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None

    def __new__(cls, *args: object, **options: object) -> Self:
        _known_names(cls, args, options)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.beam_width = integer("beam_width", self.beam_width, low=1)
        self.max_tokens = integer("max_tokens", self.max_tokens, low=1)
        self.temperature = number("temperature", self.temperature, 0.0)
        self.length_penalty = number("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            typed(name, getattr(self, name), bool, "True or False")
        self.structured_outputs = StructuredOutputsParams.of(self.structured_outputs, "structured_outputs")


def _known_names(cls: type[Any], args: tuple[object, ...], options: Mapping[str, object]) -> None:
    """Runs before the generated __init__, whose complaint about a misspelt name would not help."""
    names = cls.__dataclass_fields__
    if len(args) > POSITIONAL:
        raise InvalidRequestError(f"{cls.__name__} takes at most {POSITIONAL} positional arguments; name the others.")
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(sorted(set(names) - set(_REFUSED)))}."
            raise InvalidRequestError(f"{cls.__name__} has no option {name!r}.{hint}", field=name)


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return dict(value) if isinstance(value, dict) else value
