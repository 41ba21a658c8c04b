"""How rows move on the device from one token to the next. `reference`, `triton` and `cpu` each offer these ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

FAILED = -2  # in place of a token: there was none to choose
MOST_STOPS = 16  # stop tokens a row knows on the device; the host knows all


@dataclass(frozen=True, slots=True)
class RowState:
    """Tokens and counters of every row. A quiet row has its last token: it computes that one's predecessor again,
    stores no keys and yields no tokens, so that it may stay in a batch until the host has noticed.
    """

    tokens: torch.Tensor  # [num_rows, max_len + 1] int32
    num_computed: torch.Tensor  # [num_rows] int32, strided: tokens whose KV is in the cache (one more in a quiet row)
    min_len: torch.Tensor  # [num_rows] int32, strided: tokens before which no stop token counts
    max_len: torch.Tensor  # [num_rows] int32, strided: tokens with which a row ends
    quiet: torch.Tensor  # [num_rows] int32, strided: 0 or 1
    stops: torch.Tensor  # [num_rows, MOST_STOPS] int32: tokens that end a row, padded with -1


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What B rows feed into a forward of one token each. All written in place: a captured forward reads them here."""

    rows: torch.Tensor  # [B] int32
    ids: torch.Tensor  # [B] int32
    positions: torch.Tensor  # [B] int64
    seq_lens: torch.Tensor  # [B] int32 = position of the token that comes next
    slots: tuple[torch.Tensor, ...]  # per KV group [B] int64

    def first(self, count: int) -> DecodeInputs:
        return DecodeInputs(
            self.rows[:count],
            self.ids[:count],
            self.positions[:count],
            self.seq_lens[:count],
            tuple(slots[:count] for slots in self.slots),
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """S tokens that were chosen, and where they go."""

    rows: torch.Tensor  # [S] int32
    lengths: torch.Tensor  # [S] int32: position of the new token
    tokens: torch.Tensor  # [S] int32
    peaks: torch.Tensor  # [S] float32, not finite where no token could be chosen


class RowOps(Protocol):
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, inputs: DecodeInputs) -> None:
        """Fills `inputs` for inputs.rows; tables: per group [num_rows, max_blocks] int32. Slots of quiet rows are 0."""
        ...

    def commit(self, state: RowState, sampled: Sampled, out: torch.Tensor) -> None:
        """Each row takes its token and has one more computed; it goes quiet with a stop token, its last token, or a
        failure. out [lines, S] int32, the first line: the token, NO_TOKEN of a row that was quiet, or FAILED. A list of
        calls that is made several times over (`device.calls`) fills one line after another.
        """
        ...
