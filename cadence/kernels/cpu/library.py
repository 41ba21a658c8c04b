"""The functions of the compiled library, by name."""

from __future__ import annotations

from cadence.device.calls import Calls, Function
from cadence.kernels.cpu.build import load_library

_NAMES = (
    "linear", "rms_norm", "add_rms_norm", "gate_mul", "rope", "write_kv", "attention", "embed", "gumbel", "draw",
    "rows_gather", "rows_slots", "rows_commit", "packed_linear", "packed_rows",
)  # fmt: skip


class CpuLibrary:
    """The words each function takes: commands.c."""

    def __init__(self, calls: Calls) -> None:
        library = load_library()
        for name in _NAMES:
            setattr(self, name, Function(getattr(library, f"call_{name}")))
        calls.replay_with(library.cadence_replay)

    def __getattr__(self, name: str) -> Function:
        raise AttributeError(f"the library has no kernel {name!r}")
