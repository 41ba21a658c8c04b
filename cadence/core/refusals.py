"""Refusals reach the caller of a Python API as a sentence under the call, without the frames below it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cadence.core.errors import (
    AdapterError,
    ConfigError,
    InvalidRequestError,
    ModelNotFoundError,
    TokenizerError,
    WeightsError,
)

P = ParamSpec("P")
T = TypeVar("T")

# What the caller can put right. Other errors keep their frames: these are about what happened inside.
REFUSALS = (AdapterError, ConfigError, InvalidRequestError, ModelNotFoundError, TokenizerError, WeightsError)


def without_frames(call: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except REFUSALS as error:
            raise error.with_traceback(None) from None

    return wrapper
