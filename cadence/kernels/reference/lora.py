"""Adapters in plain torch, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from cadence.kernels.interface.lora_ops import LoraMap, LoraPart


class ReferenceLoraOps:
    any_type = True

    def arranged(self, part: LoraPart, embedding: bool) -> LoraPart:
        return replace(part, a=part.a.contiguous(), b=part.b.contiguous())

    def token_slots(
        self, row_slots: torch.Tensor, rows: torch.Tensor, query_start: torch.Tensor, out: torch.Tensor
    ) -> None:
        lengths = (query_start[1:] - query_start[:-1]).long()
        of_tokens = row_slots[rows.long()].repeat_interleave(lengths)
        out.fill_(-1)
        out[: of_tokens.shape[0]] = of_tokens

    def add(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        for at, columns, part in _parts(lora, slots):
            inner = x[at].float() @ part.a.float().T if part.rank else x.new_zeros((len(at), 0))
            y[at, columns] = _changed(y[at, columns], inner, part, 1.0)

    def add_embedding(
        self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float
    ) -> None:
        for at, columns, part in _parts(lora, slots):
            inner = part.a[ids[at].long()].float() if part.rank else y.new_zeros((len(at), 0))
            y[at, columns] = _changed(y[at, columns], inner, part, scale)

    def saved_rows(self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        for at, _, part in _parts(lora, slots):
            if part.saved.numel():
                y[at] = (part.saved[ids[at].long()].float() * scale).to(y.dtype)

    def saved_logits(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        for at, _, part in _parts(lora, slots):
            if part.saved.numel():
                y[at] = (x[at].float() @ part.saved.float().T).to(y.dtype)


def _changed(y: torch.Tensor, inner: torch.Tensor, part: LoraPart, scale: float) -> torch.Tensor:
    """y [n, out], inner [n, rank]"""
    result = y.float()
    if part.rank:
        result = result + (inner * (part.scale * scale)) @ part.b.float()
    if part.factor.numel():
        result = result * part.factor
    if part.offset.numel():
        result = result + part.offset
    return result.to(y.dtype)


def _parts(lora: LoraMap, slots: torch.Tensor) -> Iterator[tuple[torch.Tensor, slice, LoraPart]]:
    """(lines [n] int64, columns, part) of every slot that lines are in."""
    for slot in slots.unique().tolist():
        start = 0
        for width, part in zip(lora.widths, lora.slots.get(slot, ()), strict=False):
            yield (slots == slot).nonzero()[:, 0], slice(start, start + width), part
            start += width
