"""The functions of the compiled library, by name. A process opens it once."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int64, c_void_p
from functools import cache
from operator import itemgetter

from cadence.device.calls import WORDS, Calls, Function
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.table import TABLE, TableError

_SIGNATURES = {  # result, arguments
    "cadence_pool_open": (c_void_p, [c_int64]),
    "cadence_pool_close": (None, [c_void_p]),
    "cadence_enter": (None, [c_void_p]),
    "cadence_leave": (None, []),
    "cadence_call": (None, [c_void_p] * 3),
    "cadence_replay": (None, [c_void_p, c_void_p, c_int64]),
    "cadence_packed_linear": (c_int64, [c_void_p]),
    "cadence_packed_rows": (c_int64, [c_void_p]),
    "cadence_packed_bytes": (c_int64, [c_int64] * 3),
    "cadence_packed_isa": (c_char_p, [c_int64]),
    "cadence_pack": (c_int64, [c_void_p, c_int64, c_void_p, *[c_int64] * 4]),
    "cadence_quantize": (None, [c_void_p, c_void_p, c_int64, c_int64]),
}


@cache
def open_library() -> ctypes.CDLL:
    library = load_library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Command:
    """One kernel, called with its words by name: those of `struct NAME` in commands.h, every one of them."""

    def __init__(self, calls: Calls, name: str, function: Function) -> None:
        self._calls = calls
        self._function = function
        self._name = name
        self._words = TABLE.commands[name]
        self._in_order = itemgetter(*self._words)

    def __call__(self, **words: int) -> None:
        if len(words) != len(self._words):
            raise self._wrong(words)
        try:
            in_order = self._in_order(words)
        except KeyError:
            raise self._wrong(words) from None
        self._calls.call(self._function, *in_order)

    def _wrong(self, words: dict[str, int]) -> TypeError:
        missing = [name for name in self._words if name not in words]
        unknown = [name for name in words if name not in self._words]
        return TypeError(f"command {self._name}: words that are missing: {missing}, that it does not have: {unknown}")


class CpuLibrary:
    """Every command of commands.h, by its name."""

    def __init__(self, calls: Calls) -> None:
        if TABLE.words != WORDS:
            raise TableError(f"commands.h: COMMAND_WORDS is {TABLE.words}, a call has {WORDS} words")
        library = open_library()
        calls.connect(library)
        for name in TABLE.commands:
            setattr(self, name, Command(calls, name, Function(getattr(library, f"call_{name}"))))

    def __getattr__(self, name: str) -> Command:
        raise AttributeError(f"the library has no command {name!r}")
