"""Picks the implementation of the row ops that goes with the ops of the model."""

from __future__ import annotations

from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.kernels.row_ops import RowOps


def select_row_ops(ops_name: str) -> RowOps:
    """`ops_name` is the name of the ops in use: "reference", "cpu" or "triton"."""
    if ops_name == "cpu":
        from cadence.kernels.cpu.rows import CpuRowOps

        return CpuRowOps()
    if ops_name == "triton":
        from cadence.kernels.triton.rows import TritonRowOps

        return TritonRowOps()
    return ReferenceRowOps()
