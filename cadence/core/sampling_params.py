"""How the tokens of one request are chosen, under vLLM's names. Checked when made, so what exists is valid."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from numbers import Integral, Real
from typing import Any, Self

from cadence.core.errors import InvalidRequestError

logger = logging.getLogger(__name__)

GREEDY_BELOW = 1e-5  # a lower temperature means: the most likely token
MIN_TEMPERATURE = 0.01  # temperatures between the two are raised to this, or logits / temperature overflows
MAX_LOGIT_BIAS = 100.0
POSITIONAL = 16  # fields from n to prompt_logprobs stand in the order vLLM has them
MAX_N = 16_384  # completions of one prompt
# Integers travel and are stored as 64 bits at most.
_MAX_INT = 2**63 - 1
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
_REFUSED = {
    "structured_outputs": "this engine does not constrain its output by a grammar",
    "guided_decoding": "this engine does not constrain its output by a grammar",
    "best_of": "it was removed from vLLM; ask for n completions and choose among them",
    "thinking_token_budget": "this engine does not tell reasoning tokens from others",
    "repetition_detection": "this engine does not stop on repeated patterns; use the penalties or stop",
    "logprob_token_ids": "logprobs are given for the most likely tokens; use logprobs=-1 for all of them",
    "flat_logprobs": "logprobs come as one dict per position",
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
    bad_words_token_ids: list[list[int]] | None = None  # not for users: bad_words, tokenised by the input processor
    skip_clone: bool = False
    # Refused unless left at their default, see _REFUSED.
    structured_outputs: object = None
    guided_decoding: object = None
    best_of: object = None
    thinking_token_budget: object = None
    repetition_detection: object = None
    logprob_token_ids: object = None
    flat_logprobs: object = False
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
        for name in ("logprobs", "prompt_logprobs"):
            _within_logprobs_cap(name, getattr(self, name), vocab_size, max_logprobs)
        token_lists: dict[str, Sequence[int]] = {
            "logit_bias": list(self.logit_bias or ()),
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids or (),
            "bad_words": [token for word in self.bad_words_token_ids or () for token in word],
        }
        for name, tokens in token_lists.items():
            if tokens and max(tokens) >= vocab_size:
                raise _invalid(name, max(tokens), f"a token id below the vocabulary size {vocab_size}")
        if self.min_tokens >= max_model_len:
            raise _invalid("min_tokens", self.min_tokens, f"below max_model_len ({max_model_len})")

    def _check_refused(self) -> None:
        for name, why in _REFUSED.items():
            value = getattr(self, name)
            if value not in (None, False, 0):
                raise InvalidRequestError(f"{name}={value!r} is not supported: {why}.", field=name)

    def _check_counts(self) -> None:
        self.n = _integer("n", self.n, low=1, high=MAX_N)
        self.min_tokens = _integer("min_tokens", self.min_tokens, low=0)
        self.top_k = max(_integer("top_k", self.top_k, low=-1), 0)
        if self.max_tokens is not None:
            self.max_tokens = _integer("max_tokens", self.max_tokens, low=1)
            if self.min_tokens > self.max_tokens:
                raise _invalid("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        if self.stream_interval is not None:
            self.stream_interval = _integer("stream_interval", self.stream_interval, low=1)
        if self.seed is not None:
            seed = _integer("seed", self.seed, low=-(2**63), high=2**64 - 1)
            self.seed = None if seed == -1 else seed

    def _check_probabilities(self) -> None:
        self.presence_penalty = _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.repetition_penalty = _number("repetition_penalty", self.repetition_penalty, 0.0)
        if self.repetition_penalty == 0.0:
            raise _invalid("repetition_penalty", self.repetition_penalty, "greater than 0")
        self.repetition_penalty = min(max(self.repetition_penalty, 1 / _EXTREME), _EXTREME)
        self.temperature = min(_number("temperature", self.temperature, 0.0), _EXTREME)
        self.min_p = _number("min_p", self.min_p, 0.0, 1.0)
        self.top_p = _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise _invalid("top_p", self.top_p, "greater than 0 and at most 1")

    def _check_logprobs(self) -> None:
        self.logprobs = _logprobs_count("logprobs", self.logprobs)
        self.prompt_logprobs = _logprobs_count("prompt_logprobs", self.prompt_logprobs)

    def _check_stops(self) -> None:
        self.stop = _strings("stop", [self.stop] if isinstance(self.stop, str) else self.stop)
        self.bad_words = list(dict.fromkeys(_strings("bad_words", self.bad_words)))
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True; stop_token_ids do not.", field="stop")

    def _check_token_lists(self) -> None:
        if self.logit_bias is not None:
            self.logit_bias = _logit_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = list(dict.fromkeys(_token_ids("allowed_token_ids", self.allowed_token_ids)))
            if not self.allowed_token_ids:
                raise _invalid("allowed_token_ids", [], "a list of at least one token id, or None")
        if self.bad_words_token_ids is not None:
            self.bad_words_token_ids = [_token_ids("bad_words_token_ids", word) for word in self.bad_words_token_ids]
            if not all(self.bad_words_token_ids):
                raise _invalid("bad_words_token_ids", self.bad_words_token_ids, "lists of at least one token id")

    def _check_rest(self) -> None:
        for name in _BOOLEANS:
            _typed(name, getattr(self, name), bool, "True or False")
        _typed("output_kind", self.output_kind, RequestOutputKind, "a RequestOutputKind")
        if self.skip_reading_prefix_cache is not None:
            _typed("skip_reading_prefix_cache", self.skip_reading_prefix_cache, bool, "True, False or None")
        # A prompt token found in the cache has no hidden state to take its logprob from.
        self.skip_reading_prefix_cache = bool(self.skip_reading_prefix_cache) or self.prompt_logprobs is not None
        if self.extra_args is not None:
            _typed("extra_args", self.extra_args, dict, "a dict or None")
        if self.logits_processors is not None:
            self.logits_processors = _callables("logits_processors", self.logits_processors)

    def _settle_greedy(self) -> None:
        if self.greedy:
            if self.n > 1:
                raise _invalid("n", self.n, "1 when temperature is 0: greedy completions would all be the same")
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
    structured_outputs: object = None  # refused unless None

    def __new__(cls, *args: object, **options: object) -> Self:
        _known_names(cls, args, options)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.beam_width = _integer("beam_width", self.beam_width, low=1)
        self.max_tokens = _integer("max_tokens", self.max_tokens, low=1)
        self.temperature = _number("temperature", self.temperature, 0.0)
        self.length_penalty = _number("length_penalty", self.length_penalty)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            _typed(name, getattr(self, name), bool, "True or False")
        if self.structured_outputs is not None:
            why = _REFUSED["structured_outputs"]
            raise InvalidRequestError(f"structured_outputs is not supported: {why}.", field="structured_outputs")


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


def _invalid(name: str, value: object, must_be: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {must_be}; got {_shown(value)}.", field=name)


def _shown(value: object) -> str:
    """Short, and never the work of writing down a long one."""
    if isinstance(value, list | dict):
        return f"{len(value)} entries" if len(value) > 16 else _cut(repr(value))
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    return _cut(repr(value[:80] if isinstance(value, str) else value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _typed(name: str, value: object, kind: type, must_be: str) -> None:
    if not isinstance(value, kind):
        raise _invalid(name, value, must_be)


def _integer(name: str, value: object, low: int, high: int = _MAX_INT) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _invalid(name, value, "an integer")
    number = operator.index(value)
    if number < low:
        raise _invalid(name, number, f"at least {low}")
    if number > high:
        raise _invalid(name, number, f"at most {high}" if high < _MAX_INT else "an integer of 64 bits")
    return number


def _number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _invalid(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _invalid(name, number, "a finite number")
    if not low <= number <= high:
        raise _invalid(name, number, f"at least {low}" if high == math.inf else f"between {low} and {high}")
    return number


def _logprobs_count(name: str, value: object) -> int | None:
    if value is None:
        return None
    return 1 if value is True else _integer(name, value, low=-1)  # True: the chat API's way to ask for one


def _within_logprobs_cap(name: str, value: int | None, vocab_size: int, max_logprobs: int) -> None:
    if value is None or max_logprobs == -1:
        return
    wanted = vocab_size if value == -1 else value
    if wanted > max_logprobs:
        raise _invalid(name, value, f"at most {max_logprobs}, the engine's max_logprobs (-1 asks for {vocab_size})")


def _listed(name: str, value: object, of: str) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _invalid(name, value, f"a list of {of}")
    return list(value)


def _strings(name: str, value: object) -> list[str]:
    strings = [] if value is None else _listed(name, value, "strings")
    for string in strings:
        _typed(name, string, str, "a list of strings")
        if not string:
            raise _invalid(name, strings, "a list of strings that are not empty")
    return strings


def _token_ids(name: str, value: object) -> list[int]:
    tokens = [] if value is None else _listed(name, value, "token ids")
    if set(map(type, tokens)) <= {int} and min(tokens, default=0) >= 0 and max(tokens, default=0) <= _MAX_INT:
        return tokens
    return [_integer(name, token, low=0) for token in tokens]


def _callables(name: str, value: object) -> list[LogitsProcessor]:
    functions = _listed(name, value, "callables")
    for function in functions:
        if not callable(function):
            raise _invalid(name, function, "a list of callables")
    return functions


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _invalid("logit_bias", value, "a dict from token id to a number")
    bias: dict[int, float] = {}
    for key, number in value.items():
        token = _integer("logit_bias", int(key) if _is_token(key) else key, low=0)
        if token in bias:
            raise InvalidRequestError(f"logit_bias names the token {token} twice.", field="logit_bias")
        bias[token] = min(max(_number("logit_bias", number), -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS)
    return bias


def _is_token(key: object) -> bool:
    """JSON has no names but strings. Digits of other scripts are no ids, and int() reads no more than 4300 digits."""
    return isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
