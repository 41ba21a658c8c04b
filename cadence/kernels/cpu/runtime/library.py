"""The functions of the compiled library, by name. Whoever opens it hands it on: opening it looks for a compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int64, c_void_p
from typing import Any

from cadence.device.calls import WORDS, Caller, Function
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.table import TABLE, TableError

Command = Callable[..., None]
_SIGNATURES = {  # result, arguments
    "cadence_pool_open": (c_void_p, [c_int64]),
    "cadence_pool_close": (None, [c_void_p]),
    "cadence_enter": (None, [c_void_p]),
    "cadence_leave": (None, []),
    "cadence_call": (None, [c_void_p] * 3),
    "cadence_replay": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
    "cadence_packed_linear": (c_int64, [c_void_p]),
    "cadence_packed_rows": (c_int64, [c_void_p]),
    "cadence_packed_bytes": (c_int64, [c_int64] * 3),
    "cadence_packed_isa": (c_char_p, [c_int64]),
    "cadence_pack": (c_int64, [c_void_p, c_int64, c_void_p, *[c_int64] * 4]),
    "cadence_quantize": (None, [c_void_p, c_void_p, c_int64, c_int64]),
}


def open_library() -> ctypes.CDLL:
    library = load_library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def make_command(calls: Caller, name: str, function: Function) -> Command:
    """One kernel, called with its words by name: those of `struct NAME` in commands.h, every one of them.

    A function of its own that has them as parameters: Python puts them in order as it makes the call.
    """
    words = ", ".join(TABLE.commands[name])
    namespace: dict[str, Any] = {"_call": calls.call, "_function": function}  # no word begins so
    exec(f"def {name}(*, {words}): _call(_function, {words})", namespace)
    return namespace.pop(name)  # it would hold itself, and the threads of `calls` with it


class CpuLibrary:
    """Every command of commands.h, by its name."""

    def __init__(self, calls: Caller) -> None:
        if TABLE.words != WORDS:
            raise TableError(f"commands.h: COMMAND_WORDS is {TABLE.words}, a call has {WORDS} words")
        self.functions = library = open_library()
        calls.connect(library)
        for name in TABLE.commands:
            setattr(self, name, make_command(calls, name, Function(getattr(library, f"call_{name}"))))

    def __getattr__(self, name: str) -> Command:
        raise AttributeError(f"the library has no command {name!r}")
