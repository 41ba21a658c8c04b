"""States of a tiny model's rows, as a runner would have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.core.model.state_spec import LayerState
from cadence.kernels.interface.state_ops import StateRuns, StateTable
from cadence.models.decoder import DecoderLM
from cadence.models.interface.row_states import LayerTables, RowStates


def state_tables(model: DecoderLM, num_rows: int, most_drafts: int, dtype: torch.dtype) -> list[LayerTables]:
    """Of rows that begin; where nothing may be read is a number that shows."""
    return [_tables(own, num_rows, most_drafts, dtype) for own in model.state_layers()]


def begun(model: DecoderLM, lengths: Sequence[int], dtype: torch.dtype) -> RowStates:
    """Of rows with runs of these lengths, which begin with them."""
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    counts = torch.tensor(lengths, dtype=torch.int32)
    runs = StateRuns(
        rows=torch.arange(len(lengths), dtype=torch.int32),
        query_start=starts,
        replayed=torch.zeros_like(counts),
        certain=counts,
        kept=torch.zeros_like(counts),
        num_single=next((index for index, length in enumerate(lengths) if length > 1), len(lengths)),
        max_query_len=max(lengths),
    )
    return RowStates(state_tables(model, len(lengths), 0, dtype), runs)


def _tables(own: LayerState, num_rows: int, most_drafts: int, dtype: torch.dtype) -> LayerTables:
    channels, taps = own.conv
    inputs = torch.full((num_rows, taps - 1 + most_drafts, channels), 1e3, dtype=dtype)
    inputs[:, : taps - 1] = 0.0
    kept = torch.full((num_rows, most_drafts, own.kept), 1e3, dtype=dtype)
    return LayerTables(inputs, StateTable(torch.zeros((num_rows, *own.state)), kept))
