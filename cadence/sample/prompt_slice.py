"""What a step computes, for those who look at its hidden states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class PromptSlice:
    """What this step computes: R rows, each a run of consecutive tokens."""

    rows_np: np.ndarray  # [R]
    query_start_np: np.ndarray  # [R + 1], where each row's tokens begin in the hidden states
    num_computed_np: np.ndarray  # [R], position of the first token of each run; exact for rows still in their prompt
    tokens: torch.Tensor  # [num_rows, max_len] int32, on the device
