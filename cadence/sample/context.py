"""What sampling knows of the rows it samples for, and the shape of a step on logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.core.failure import Failure


@dataclass(frozen=True, slots=True)
class SampleContext:
    """One line for each token to be chosen in this step; line i of the logits belongs to row rows[i]. Lines of one row
    stand one after the other, and what comes before a line in its row is in the token table, drafts included."""

    rows: torch.Tensor  # [S] int64
    rows_np: np.ndarray  # [S] int32, the same on the host
    lengths: torch.Tensor  # [S] int64: tokens before the one about to be sampled = its position
    tokens: torch.Tensor  # [num_rows, max_len] int32: all tokens of every row; line i uses tokens[rows[i], :lengths[i]]
    prompt_lens: torch.Tensor  # [S] int64
    errors: dict[int, Failure]  # by line: a step that fails for one line says so here and goes on

    @staticmethod
    def of(
        rows_np: np.ndarray, rows: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor, prompt_lens: torch.Tensor
    ) -> SampleContext:
        """rows, lengths [S] int32; tokens and prompt_lens of all rows."""
        rows = rows.long()
        return SampleContext(rows, rows_np, lengths.long(), tokens, prompt_lens[rows].long(), {})


class LogitsStep(Protocol):
    """One transformation of the logits. A step that no row uses launches nothing."""

    def active(self, rows_np: np.ndarray) -> bool: ...

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        """logits [S, V] float32, may be changed in place; returns the logits to go on with."""
        ...


class RowStep(LogitsStep, Protocol):
    """A step with state of its own per row: it is a `RequestTable`, too."""

    def add(self, row: int, request: NewRow) -> None: ...

    def remove(self, row: int) -> None: ...

    def flush(self) -> None: ...
