"""Checks of single options under the names users gave them: a value of the right type and range, or one clear error."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from cadence.core.errors import InvalidRequestError

MAX_INT = 2**63 - 1  # integers travel and are stored as 64 bits at most
MAX_LOGIT_BIAS = 100.0


def invalid(name: str, value: object, must_be: str) -> InvalidRequestError:
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


def typed(name: str, value: object, kind: type, must_be: str) -> None:
    if not isinstance(value, kind):
        raise invalid(name, value, must_be)


def integer(name: str, value: object, low: int, high: int = MAX_INT) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise invalid(name, value, "an integer")
    whole = operator.index(value)
    if whole < low:
        raise invalid(name, whole, f"at least {low}")
    if whole > high:
        raise invalid(name, whole, f"at most {high}" if high < MAX_INT else "an integer of 64 bits")
    return whole


def number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(name, value, "a number")
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise invalid(name, real, "a finite number")
    if not low <= real <= high:
        raise invalid(name, real, f"at least {low}" if high == math.inf else f"between {low} and {high}")
    return real


def draft_limit(name: str, value: object) -> dict[str, int] | None:
    """{"num_tokens": k}; None where nothing is asked for."""
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping) or set(value) != {"num_tokens"}:
        raise invalid(name, value, 'an object with the key "num_tokens", or None')
    return {"num_tokens": integer(f"{name}.num_tokens", value["num_tokens"], low=0)}


def logprobs_count(name: str, value: object) -> int | None:
    if value is None:
        return None
    return 1 if value is True else integer(name, value, low=-1)  # True: the chat API's way to ask for one


def within_logprobs_cap(name: str, value: int | None, vocab_size: int, max_logprobs: int) -> None:
    if value is None or max_logprobs == -1:
        return
    wanted = vocab_size if value == -1 else value
    if wanted > max_logprobs:
        raise invalid(name, value, f"at most {max_logprobs}, the engine's max_logprobs (-1 asks for {vocab_size})")


def _listed(name: str, value: object, of: str) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise invalid(name, value, f"a list of {of}")
    return list(value)


def strings(name: str, value: object) -> list[str]:
    strings = [] if value is None else _listed(name, value, "strings")
    for string in strings:
        typed(name, string, str, "a list of strings")
        if not string:
            raise invalid(name, strings, "a list of strings that are not empty")
    return strings


def token_ids(name: str, value: object) -> list[int]:
    tokens = [] if value is None else _listed(name, value, "token ids")
    if set(map(type, tokens)) <= {int} and min(tokens, default=0) >= 0 and max(tokens, default=0) <= MAX_INT:
        return tokens
    return [integer(name, token, low=0) for token in tokens]


def callables(name: str, value: object) -> list[Callable[..., Any]]:
    functions = _listed(name, value, "callables")
    for function in functions:
        if not callable(function):
            raise invalid(name, function, "a list of callables")
    return functions


def logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise invalid("logit_bias", value, "a dict from token id to a number")
    wrong = [key for key in value if isinstance(key, str) and not _is_token(key)]
    if wrong:
        raise invalid("logit_bias", wrong, "keyed by token ids, each an integer")
    bias: dict[int, float] = {}
    for key, given in value.items():
        token = integer("logit_bias", int(key) if isinstance(key, str) else key, low=0)
        if token in bias:
            raise InvalidRequestError(f"logit_bias names the token {token} twice.", field="logit_bias")
        bias[token] = min(max(number("logit_bias", given), -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS)
    return bias


def _is_token(key: object) -> bool:
    """JSON has no names but strings. Digits of other scripts are no ids, and int() reads no more than 4300 digits."""
    return isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
