"""The half of a feature on the device, as the runner and its loop over forwards know it. They name none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from cadence.core.table import RequestTable
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.model import ForwardContext


class InputHook(Protocol):
    """Gives forwards of the rows that use a feature more than tokens and positions."""

    name: str  # the feature's

    def active(self, rows_np: np.ndarray) -> bool:
        """Whether one of these rows uses it."""
        ...

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        """Of a forward whose batch was gathered, where some row uses it. It may be recorded: all is found by the
        device."""
        ...


class DeviceFeature:
    """Does what the host's half of it sends. Methods do nothing by default."""

    name: str  # as `core/features.py` has it
    tables: Sequence[RequestTable] = ()  # told of rows that begin and end
    inputs: Sequence[InputHook] = ()

    def apply(self, payload: Any) -> None:
        """Of a plan: after rows have ended, before others begin."""
