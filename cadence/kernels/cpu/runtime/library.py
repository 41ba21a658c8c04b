"""The functions of the compiled library, by name. A process opens it once."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int64, c_void_p
from functools import cache

from cadence.device.calls import Calls, Function
from cadence.kernels.cpu.runtime.build import load_library

_NAMES = (
    "rms_norm", "add_rms_norm", "gate_mul", "rope", "write_kv", "attention", "gumbel", "draw",
    "rows_gather", "rows_slots", "rows_commit", "packed_linear", "packed_rows",
    "layer_norm", "add", "add_rows", "scale", "activate", "softcap",
)  # fmt: skip

_SIGNATURES = {  # result, arguments
    "cadence_pool_open": (c_void_p, [c_int64]),
    "cadence_pool_close": (None, [c_void_p]),
    "cadence_enter": (None, [c_void_p]),
    "cadence_leave": (None, []),
    "cadence_call": (None, [c_void_p] * 3),
    "cadence_replay": (c_int64, [c_void_p, c_void_p, c_int64, c_void_p, c_int64]),
    "cadence_packed_linear": (c_int64, [c_void_p]),
    "cadence_packed_rows": (c_int64, [c_void_p] * 3 + [c_int64] * 4),
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


class CpuLibrary:
    """The words each function takes: commands.c."""

    def __init__(self, calls: Calls) -> None:
        library = open_library()
        calls.connect(library)
        for name in _NAMES:
            setattr(self, name, Function(getattr(library, f"call_{name}")))

    def __getattr__(self, name: str) -> Function:
        raise AttributeError(f"the library has no kernel {name!r}")
