"""Adapters on top of products, in C."""

from __future__ import annotations

import torch

from cadence.device.calls import Calls, float_word
from cadence.kernels.cpu.runtime.dtypes import DTYPES
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.cpu.runtime.row_words import dense_rows
from cadence.kernels.interface.lora_ops import TYPES, LoraMap

if any(DTYPES[dtype] != number for dtype, number in TYPES.items()):
    raise ImportError(f"commands.h numbers types otherwise than entries do: {DTYPES}, {TYPES}")


class CpuLoraOps:
    panels = True
    any_type = True

    def __init__(self, calls: Calls, library: CpuLibrary) -> None:
        self._calls = calls
        self._c = library

    def token_slots(
        self, row_slots: torch.Tensor, rows: torch.Tensor, query_start: torch.Tensor, out: torch.Tensor
    ) -> None:
        self._c.lora_token_slots(
            out=out.data_ptr(),
            row_slots=row_slots.data_ptr(),
            rows=rows.data_ptr(),
            query_start=query_start.data_ptr(),
            row_stride=row_slots.stride(0),
            num_rows=rows.shape[0],
            num_tokens=out.shape[0],
        )

    def add(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        x = dense_rows(x)
        inputs = {"x": x.data_ptr(), "ids": 0, "width": x.shape[1], "x_stride": x.stride(0)}
        self._add(y, inputs, DTYPES[x.dtype], lora, slots, 1.0)

    def add_embedding(
        self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float
    ) -> None:
        inputs = {"x": 0, "ids": ids.data_ptr(), "width": 0, "x_stride": 0}
        self._add(y, inputs, DTYPES[y.dtype], lora, slots, scale)

    def _add(
        self, y: torch.Tensor, inputs: dict[str, int], x_dtype: int, lora: LoraMap, slots: torch.Tensor, scale: float
    ) -> None:
        parts = len(lora.widths)
        inner = self._calls.empty((y.shape[0], parts, lora.max_rank), torch.float32)
        self._c.lora_add(
            **inputs,
            **_entry_words(lora, slots),
            y=y.data_ptr(),
            starts=lora.starts.data_ptr(),
            inner=inner.data_ptr(),
            lines=y.shape[0],
            parts=parts,
            max_rank=lora.max_rank,
            y_stride=y.stride(0),
            x_dtype=x_dtype,
            y_dtype=DTYPES[y.dtype],
            scale=float_word(scale),
        )

    def saved_rows(self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        self._c.lora_saved_rows(
            **_entry_words(lora, slots),
            y=y.data_ptr(),
            ids=ids.data_ptr(),
            lines=y.shape[0],
            width=y.shape[1],
            y_stride=y.stride(0),
            y_dtype=DTYPES[y.dtype],
            scale=float_word(scale),
        )

    def saved_logits(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        x = dense_rows(x)
        self._c.lora_saved_logits(
            **_entry_words(lora, slots),
            y=y.data_ptr(),
            x=x.data_ptr(),
            lines=y.shape[0],
            width=x.shape[1],
            vocabulary=y.shape[1],
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            x_dtype=DTYPES[x.dtype],
            y_dtype=DTYPES[y.dtype],
        )


def _entry_words(lora: LoraMap, slots: torch.Tensor) -> dict[str, int]:
    return {
        "slots": slots.data_ptr(),
        "entries": lora.entries.data_ptr(),
        "first": lora.first,
        "num_slots": lora.num_slots,
        "slot_words": lora.entries.stride(0),
    }
