"""Work on some lines of the logits only; which ones, the host knows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cadence.device.base import Device

NOTHING = float("-inf")  # the logit of a token that cannot be chosen

LineIndex = torch.Tensor | slice  # [n] int64, or all of them
Change = Callable[[torch.Tensor, LineIndex], torch.Tensor]


class LinePicker:
    """A device index of the lines marked on the host, uploaded again only when the marks change."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._mask_np = np.zeros(0, dtype=np.bool_)
        self._index = torch.zeros(0, dtype=torch.int64, device=device.torch_device)

    def pick(self, mask_np: np.ndarray) -> LineIndex:
        """mask_np [S] bool -> what selects the marked lines."""
        if mask_np.all():
            return slice(None)
        if not np.array_equal(mask_np, self._mask_np):
            self._index = self._device.upload(np.flatnonzero(mask_np))
            self._mask_np = mask_np
        return self._index

    def change(self, logits: torch.Tensor, mask_np: np.ndarray, change: Change) -> torch.Tensor:
        """Replaces the marked lines x of logits [S, V] by change(x, lines), which must not write into x."""
        lines = self.pick(mask_np)
        if isinstance(lines, slice):
            return change(logits, lines)
        logits[lines] = change(logits[lines], lines)
        return logits
