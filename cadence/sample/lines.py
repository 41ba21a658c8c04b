"""Work on some lines of the logits only; which ones, the host knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from cadence.device.base import Device

NOTHING = float("-inf")  # the logit of a token that cannot be chosen

LineIndex = torch.Tensor | slice  # [n] int64, or all of them
Change = Callable[[torch.Tensor, LineIndex], torch.Tensor]

# Bytes of float32 logits that are worked on at once; what is made of them on the way takes some five times as much.
_PIECE_BYTES = {"cpu": 1 << 23, "cuda": 1 << 27}


def line_pieces(logits: torch.Tensor) -> Iterator[slice]:
    """Consecutive lines of logits [n, V], as many at a time as memory is meant for, whatever V."""
    at_once = max(_PIECE_BYTES[logits.device.type] // (4 * logits.shape[1]), 1)
    for start in range(0, logits.shape[0], at_once):
        yield slice(start, min(start + at_once, logits.shape[0]))


def in_pieces(change: Change) -> Change:
    """A change that looks at each line by itself, made in a bounded amount of memory."""

    def change_pieces(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
        changed = torch.empty_like(part)
        for piece in line_pieces(part):
            changed[piece] = change(part[piece], piece if isinstance(lines, slice) else lines[piece])
        return changed

    return change_pieces


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
