"""What drafts were drawn from, kept on the device until they are verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class DraftedLines:
    """The drafts that stand at S lines. Where none does, draft 0 and token 0 stand for it, and what is found for them
    means nothing."""

    rows: torch.Tensor  # [S] int64
    draft: torch.Tensor  # [S] int64: its number, from 0
    tokens: torch.Tensor  # [S] int64
    temperatures: torch.Tensor  # [S] float32, at which it was drawn


class DraftDistributions(Protocol):
    def put(self, draft: int, rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Draft number `draft` of rows [S] is drawn from what is returned: logits [S, columns] as they are kept, not
        yet divided by the temperature."""
        ...

    def probabilities(self, lines: DraftedLines, vocab_size: int) -> torch.Tensor:
        """-> [S, vocab_size] float32: from which the draft of each line was drawn."""
        ...


class SureDrafts:
    """Of proposers that look drafts up: each is the only one that could have been proposed."""

    def put(self, draft: int, rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def probabilities(self, lines: DraftedLines, vocab_size: int) -> torch.Tensor:
        sure = torch.zeros((len(lines.rows), vocab_size), device=lines.rows.device)
        return sure.scatter_(1, lines.tokens[:, None], 1.0)


class DraftLogits:
    """Of a model: the logits of the newest drafts of every row."""

    def __init__(self, num_rows: int, num_drafts: int, target_ids: torch.Tensor, dtype: torch.dtype) -> None:
        """num_drafts: of a row, at most; target_ids [columns] int64, none twice: the target's id of each column, on the
        device; dtype: in which logits are kept, and drawn from."""
        self._target_ids = target_ids
        size = (num_rows, num_drafts, len(target_ids))
        self._logits = torch.zeros(size, dtype=dtype, device=target_ids.device)

    def put(self, draft: int, rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        kept = logits.to(self._logits.dtype)
        self._logits[:, draft].index_copy_(0, rows.long(), kept)
        return kept

    def probabilities(self, lines: DraftedLines, vocab_size: int) -> torch.Tensor:
        logits = self._logits[lines.rows, lines.draft].float() / lines.temperatures[:, None]
        all_ids = torch.zeros((len(logits), vocab_size), device=logits.device)
        return all_ids.index_copy_(1, self._target_ids, logits.softmax(dim=-1))
