"""The words of products with packed weights and of rows looked up in them, in the instruction set that is asked for."""

from __future__ import annotations

from ctypes import CDLL, Structure, byref
from typing import Any

import torch

from cadence.core.errors import ConfigError
from cadence.device.pool import Pool
from cadence.kernels.cpu.packed.weights import PackedRows, PackedWeight
from cadence.kernels.cpu.runtime.library import NO_TENSOR, with_words
from cadence.kernels.cpu.runtime.table import TABLE

PACKED_TYPES = (torch.float32, torch.bfloat16)  # that products take


class RowsJob(Structure):
    """Rows to look up, as C sees it."""

    _fields_ = TABLE.fields("packed_rows")


_rows_job = with_words("packed_rows", RowsJob)


def instruction_sets(functions: CDLL) -> dict[str, int]:
    """Those of this machine by name, lowest first."""
    found: dict[str, int] = {}
    index = 0
    while (name := functions.cadence_packed_isa(index)) is not None:
        if name:
            found[name.decode()] = index
        index += 1
    return found


class PackedOps:
    """`isa`: "auto" = the best of this machine, or a name from `instruction_sets`. `pool`: what `embed` shares its work
    among."""

    def __init__(self, functions: CDLL, isa: str, pool: Pool) -> None:
        found = instruction_sets(functions)
        if isa != "auto" and isa not in found:
            raise ConfigError(f"instruction set {isa!r} is not one of this machine's: {', '.join(found)}", "cpu_isa")
        self.isa = next(reversed(found)) if isa == "auto" else isa
        self.index = found[self.isa]
        self._c = functions
        self._pool = pool

    @property
    def multiplies_halves(self) -> bool:
        """Whether bfloat16 x times a weight of kind HALF is done in float16: faster than with bfloat16 weights, with
        the eleven bits of float16 in sums over 64 columns. Elsewhere it is done in float32, slowly."""
        return self.isa == "neon-half"

    def multiplies_float8(self, dtype: torch.dtype) -> bool:
        """Whether x of this type times float8 weights is faster than times bfloat16: not where that has instructions of
        its own, and not on Arm, where one row takes longer to widen than to read."""
        return not self.isa.startswith("neon") and (
            dtype is not torch.bfloat16 or self.isa not in ("avx512-bf16", "amx")
        )

    def words(self, y: torch.Tensor, x: torch.Tensor, stack: PackedRows, bias: torch.Tensor | None) -> dict[str, Any]:
        """Of `packed_linear`: y [M, rows] and x [M, cols] float32 or bfloat16 with contiguous rows, bias [rows] float32
        contiguous. Sizes are checked here: a listed call cannot say what is wrong."""
        if x.shape[1] != stack.cols or y.shape != (x.shape[0], stack.rows):
            raise ValueError(f"x {list(x.shape)} and y {list(y.shape)} do not fit {stack.rows} x {stack.cols}")
        return {
            "y": y, "x": x, "bias": NO_TENSOR if bias is None else bias, "segments": stack.address,
            "num_segments": len(stack.weights), "m": x.shape[0], "k": stack.cols, "x_stride": x.stride(0),
            "y_stride": y.stride(0), "x_dtype": x.dtype, "y_dtype": y.dtype, "isa": self.index,
        }  # fmt: skip

    def row_words(self, out: torch.Tensor, ids: torch.Tensor, packed: PackedWeight) -> dict[str, Any]:
        """Of `packed_rows`: rows ids [T], contiguous, of a packed weight into out [T, cols]. Listed, ids must exist."""
        return {
            "out": out, "data": packed.data, "kind": int(packed.kind), "rows": packed.rows,
            "bytes": packed.data.numel(), "ids": ids, "id_bytes": ids.element_size(), "count": ids.shape[0],
            "k": packed.cols, "dtype": out.dtype,
        }  # fmt: skip

    def embed(self, ids: torch.Tensor, packed: PackedWeight, out_dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Rows ids [T] int32 or int64 of a packed weight -> [T, cols]."""
        if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or ids.device.type != "cpu":
            raise ValueError(f"ids must be a vector of integers on the CPU, not {ids.dtype} {list(ids.shape)}")
        if out_dtype not in PACKED_TYPES:
            return self.embed(ids, packed).to(out_dtype)
        ids = ids.contiguous()
        out = torch.empty((ids.shape[0], packed.cols), dtype=out_dtype)
        job = _rows_job(**self.row_words(out, ids, packed))
        with self._pool:
            status = self._c.cadence_packed_rows(byref(job))
        if status:
            raise ValueError(f"ids must lie between 0 and {packed.rows - 1}")
        return out
