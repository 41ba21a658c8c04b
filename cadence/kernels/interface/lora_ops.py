"""Low-rank adapters on top of a model's products. `reference`, `triton` and `cpu` each offer these ops.

An adapter lies in a slot. What it does to a product is a `LoraPart`; kernels find it by its addresses in a table of
entries, which all products of a model share. So a recorded forward serves whichever adapters lie in the slots when it
is replayed, and an adapter takes the memory of its own ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from cadence.device.calls import float_word

NOTHING = torch.empty(0)

# Words of an entry: addresses (0 = none), the rank, the bits of the scale, the type of a, b and saved.
WORD_A, WORD_B, WORD_RANK, WORD_SCALE, WORD_FACTOR, WORD_OFFSET, WORD_TYPE, WORD_SAVED = range(8)
ENTRY_WORDS = 8
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True, slots=True)
class LoraPart:
    """y becomes factor * (y + scale * x a^T b) + offset. Of what is empty, nothing is done."""

    a: torch.Tensor  # [rank, in], or as the ops have it; of an embedding [vocabulary, rank]
    b: torch.Tensor  # [rank, out] of a's type, or as the ops have it
    scale: float = 1.0
    factor: torch.Tensor = NOTHING  # [out] float32
    offset: torch.Tensor = NOTHING  # [out] float32
    saved: torch.Tensor = NOTHING  # [vocabulary, size] of a's type: in place of the model's own matrix

    @property
    def rank(self) -> int:
        return self.b.shape[-2]  # in any form

    def words(self) -> list[int]:
        """Its entry, good as long as the tensors are."""
        addresses = [tensor.data_ptr() if tensor.numel() else 0 for tensor in (self.a, self.b)]
        later = [tensor.data_ptr() if tensor.numel() else 0 for tensor in (self.factor, self.offset)]
        saved = self.saved.data_ptr() if self.saved.numel() else 0
        return [*addresses, self.rank, float_word(self.scale), *later, TYPES[self.b.dtype], saved]


NO_PART = LoraPart(torch.empty((0, 0)), torch.empty((0, 0)))  # leaves the product as it is


@dataclass(frozen=True, slots=True, eq=False)
class LoraMap:
    """The adapters of one product, whose output is divided into P parts; part p of slot s is entries[s, first + p]."""

    entries: torch.Tensor  # [slots, N, ENTRY_WORDS] int64, of all products
    first: int
    starts: torch.Tensor  # [P + 1] int32: columns of the output where parts begin
    widths: tuple[int, ...]  # [P], known to the host
    max_rank: int
    dtype: torch.dtype  # of a, b and saved, where kernels know one type
    slots: dict[int, tuple[LoraPart, ...]] = field(default_factory=dict)  # what entries point to, kept alive here

    @property
    def num_slots(self) -> int:
        return self.entries.shape[0]


class LoraOps(Protocol):
    """slots [T] int32: of each line of y; below 0: the line stays as it is. Results are rounded to y's dtype once."""

    any_type: bool  # adapters may be of another type than activations are

    def arranged(self, part: LoraPart, embedding: bool) -> LoraPart:
        """A part with a [rank, in] (of an `embedding` [vocabulary, rank]) and b [rank, out] as they are, contiguous or
        not -> in the form that these ops read; on the host, in any thread."""
        ...

    def token_slots(
        self, row_slots: torch.Tensor, rows: torch.Tensor, query_start: torch.Tensor, out: torch.Tensor
    ) -> None:
        """row_slots [num_rows] int32, strided; tokens of row rows[r] [R] int32 are [query_start[r], query_start[r + 1])
        -> out [T] int32, -1 after the last run."""
        ...

    def add(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        """y [T, out] of x [T, in], in place: as `LoraPart` says. Lines of y are contiguous, and those of x."""
        ...

    def add_embedding(
        self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float
    ) -> None:
        """As `add`, of the vectors y [T, size] of ids [T] int32, where a is looked up: y + scale * (part's own)."""
        ...

    def saved_rows(self, y: torch.Tensor, ids: torch.Tensor, lora: LoraMap, slots: torch.Tensor, scale: float) -> None:
        """y[t] = saved[ids[t]] * scale, where a slot has such."""
        ...

    def saved_logits(self, y: torch.Tensor, x: torch.Tensor, lora: LoraMap, slots: torch.Tensor) -> None:
        """y[t] [vocabulary] = saved x[t], where a slot has such."""
        ...
