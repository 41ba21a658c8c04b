"""Adapters on top of products, in C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.dtypes import DTYPES
from cadence.kernels.cpu.runtime.library import NO_TENSOR, CpuLibrary
from cadence.kernels.cpu.runtime.row_words import dense_rows, row_words
from cadence.kernels.interface.lora_ops import TYPES, LoraMap, LoraPart

if any(DTYPES[dtype] != number for dtype, number in TYPES.items()):
    raise ImportError(f"commands.h numbers types otherwise than entries do: {DTYPES}, {TYPES}")

_PANEL = 16  # columns of b: PANEL of lora.c
_GROUP, _SPAN = 4, 16  # rows of a, and columns of them that lie together: GROUP and SPAN


class CpuLoraOps:
    any_type = True

    def __init__(self, calls: Calls, library: CpuLibrary) -> None:
        self._calls = calls
        self._c = library

    def arranged(self, part: LoraPart, embedding: bool) -> LoraPart:
        """b in panels of columns; a in groups of rows, unless it is looked up. A tile reads either in one stream."""
        a = part.a.contiguous() if embedding or not part.rank else _in_groups(part.a)
        return replace(part, a=a, b=_in_panels(part.b) if part.rank else part.b)

    def token_slots(
        self, row_slots: torch.Tensor, rows: torch.Tensor, query_start: torch.Tensor, out: torch.Tensor
    ) -> None:
        self._c.lora_token_slots(
            out=out, row_slots=row_slots, rows=rows, query_start=query_start, row_stride=row_slots.stride(0),
            num_rows=rows.shape[0], num_tokens=out.shape[0],
        )  # fmt: skip

    def add(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        x = self._widened(x)
        inputs = {"x": x, "ids": NO_TENSOR, "width": x.shape[1], "x_stride": x.stride(0)}
        self._add(y, inputs, lora, slots, 1.0)

    def add_embedding(
        self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float
    ) -> None:
        inputs = {"x": NO_TENSOR, "ids": ids, "width": 0, "x_stride": 0}
        self._add(y, inputs, lora, slots, scale)

    def _add(self, y: torch.Tensor, inputs: dict[str, Any], lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        parts = len(lora.widths)
        inner = self._calls.empty((y.shape[0], parts, lora.max_rank), torch.float32)
        self._c.lora_add(
            **inputs, **_entry_words(lora, slots), y=y, starts=lora.starts, inner=inner, lines=y.shape[0], parts=parts,
            max_rank=lora.max_rank, y_stride=y.stride(0), y_dtype=y.dtype, scale=scale,
        )  # fmt: skip

    def saved_rows(self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        self._c.lora_saved_rows(
            **_entry_words(lora, slots), y=y, ids=ids, lines=y.shape[0], width=y.shape[1], y_stride=y.stride(0),
            y_dtype=y.dtype, scale=scale,
        )  # fmt: skip

    def saved_logits(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        x = self._widened(x)
        self._c.lora_saved_logits(
            **_entry_words(lora, slots), y=y, x=x, lines=y.shape[0], width=x.shape[1], vocabulary=y.shape[1],
            x_stride=x.stride(0), y_stride=y.stride(0), y_dtype=y.dtype,
        )  # fmt: skip

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] in float32, lines contiguous"""
        x = dense_rows(x)
        if x.dtype is torch.float32:
            return x
        out = self._calls.empty(x.shape, torch.float32)
        self._c.scale(**row_words(out, x), factor=1.0, dtype=x.dtype, out_dtype=torch.float32)
        return out


def _entry_words(lora: LoraMap, slots: torch.Tensor) -> dict[str, Any]:
    return {
        "slots": slots,
        "entries": lora.entries,
        "first": lora.first,
        "num_slots": lora.num_slots,
        "slot_words": lora.entries.stride(0),
    }


def _in_panels(b: torch.Tensor) -> torch.Tensor:
    """b [rank, out] -> [panels, rank, _PANEL], zeros after the last column"""
    padded = _padded(b, b.shape[0], -(-b.shape[1] // _PANEL) * _PANEL)
    return padded.view(b.shape[0], -1, _PANEL).transpose(0, 1).contiguous()


def _in_groups(a: torch.Tensor) -> torch.Tensor:
    """a [rank, in] -> [groups, spans, _GROUP, _SPAN], zeros after the last row and column"""
    groups, spans = -(-a.shape[0] // _GROUP), -(-a.shape[1] // _SPAN)
    padded = _padded(a, groups * _GROUP, spans * _SPAN)
    return padded.view(groups, _GROUP, spans, _SPAN).transpose(1, 2).contiguous()


def _padded(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    padded = values.new_zeros((rows, columns))
    padded[: values.shape[0], : values.shape[1]] = values
    return padded
