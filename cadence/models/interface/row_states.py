"""The states of a forward's rows, as layers find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cadence.kernels.interface.state_ops import StateRuns, StateTable

_NONE = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class LayerTables:
    """Of one layer, a line for each row."""

    inputs: torch.Tensor  # [num_rows, K - 1 + most drafts, C], as `StateOps.short_conv` has them
    table: StateTable


@dataclass(frozen=True, slots=True)
class RowStates:
    layers: Sequence[LayerTables]  # by number among the layers of this device that keep a state
    runs: StateRuns


NO_STATES = RowStates((), StateRuns(_NONE, _NONE, _NONE, _NONE, _NONE, num_single=0, max_query_len=0))
