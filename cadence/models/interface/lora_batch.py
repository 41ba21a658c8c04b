"""Which adapter each token of a forward is computed with: the slot it lies in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_ADAPTER = -1  # in place of a slot

_NO_TOKENS = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class LoraBatch:
    """Slots as the device finds them: a recorded forward reads them anew each time."""

    tokens: torch.Tensor  # [T] int32: of each token of the batch, or NO_ADAPTER
    wanted: torch.Tensor  # [S] int32: of those whose hidden states the forward returns; all: `tokens` itself
    lines: torch.Tensor  # [L] int32: of those that `logits` is called with
    active: bool = True  # False: no token has an adapter, and every product is the model's own

    def at_lines(self, tokens: torch.Tensor) -> LoraBatch:
        """With lines after these tokens [n] int64."""
        return LoraBatch(self.tokens, self.wanted, self.tokens[tokens])


NO_LORA = LoraBatch(_NO_TOKENS, _NO_TOKENS, _NO_TOKENS, active=False)
