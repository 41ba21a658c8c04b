"""Layers of the user's own around the app: `--middleware module.name`, a class of ASGI middleware, or a coroutine
function that takes a request and the next handler."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware

from cadence.core.errors import ConfigError


def load_middleware(paths: Sequence[str]) -> list[Callable[..., Any]]:
    """What each path names, as something that takes the app; the last is the outermost."""
    return [_load(path) for path in paths]


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"middleware={path!r} cannot be imported: {error}", "middleware") from None
    if inspect.isclass(found):
        return found
    if inspect.iscoroutinefunction(found):
        return functools.partial(BaseHTTPMiddleware, dispatch=found)
    raise ConfigError(f"middleware={path!r} is neither a class nor a coroutine function", "middleware")
