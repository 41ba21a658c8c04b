"""One step's inputs, gathered from the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cadence.kernels.interface.attention_batch import AttentionBatch


@dataclass(frozen=True, slots=True)
class StepBatch:
    """R rows compute T tokens in all; S of the rows sample."""

    rows_np: np.ndarray  # [R] int32
    query_start_np: np.ndarray  # [R + 1] int32
    num_computed_np: np.ndarray  # [R] int32, upper bounds
    rows: torch.Tensor  # [R] int64
    ids: torch.Tensor  # [T] int32
    positions: torch.Tensor  # [T] int64
    attention: AttentionBatch
    computed: torch.Tensor  # [R] int32, num_computed of each row after this step
    sample_rows_np: np.ndarray  # [S] int32
    sample_rows: torch.Tensor  # [S] int32
    sample_at: torch.Tensor  # [S] int64, index of each sampling row's last token among the T
    sample_lengths: torch.Tensor  # [S] int32, tokens known before sampling = position of the new token
