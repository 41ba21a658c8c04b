"""The functions of the compiled library, by name. Opening it looks for a compiler, so one instance is handed on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int64, c_void_p
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from cadence.config.env import cache_root, compiler
from cadence.device.calls import WORDS, Caller, Function, float_word
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.dtypes import CACHE_DTYPES, DTYPES
from cadence.kernels.cpu.runtime.table import TABLE, TableError, WordKind

Command = Callable[..., None]
NO_TENSOR = torch.empty(0)  # NULL, where a command may go without
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
_AS_WORD = {  # what is passed -> 64 bits
    WordKind.TENSOR: "{0}.data_ptr()",
    WordKind.ADDRESS: "{0}",
    WordKind.NUMBER: "{0}",
    WordKind.FLOAT: "_float_word({0})",
    WordKind.DTYPE: "_dtypes[{0}]",
    WordKind.CACHE_DTYPE: "_cache_dtypes[{0}]",
}


def open_library() -> ctypes.CDLL:
    """That of the compiler and the cache that the environment names now."""
    return _opened(tuple(compiler()), cache_root())


@cache
def _opened(command: tuple[str, ...], folder: Path) -> ctypes.CDLL:
    """To look for the file takes longer than a small model does. Nothing in it changes while a process runs."""
    library = load_library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def with_words(name: str, receive: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the words of `struct NAME` in commands.h, by name, every one of them, each as its `WordKind` says;
    it calls `receive` with their bits. They are its own parameters: Python puts them in order as it makes the call.
    """
    namespace: dict[str, Any] = {  # no word begins so
        "_receive": receive, "_float_word": float_word, "_dtypes": DTYPES, "_cache_dtypes": CACHE_DTYPES,
    }  # fmt: skip
    exec(_code(name), namespace)
    return namespace.pop(name)  # it would hold itself, and what `receive` holds with it


@cache
def _code(name: str) -> CodeType:
    words = TABLE.commands[name]
    taken = ", ".join(word.name for word in words)
    passed = ", ".join(_AS_WORD[word.kind].format(word.name) for word in words)
    return compile(f"def {name}(*, {taken}): return _receive({passed})", f"<{name}>", "exec")


def make_command(calls: Caller, name: str, function: Function) -> Command:
    return with_words(name, partial(calls.call, function))


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
