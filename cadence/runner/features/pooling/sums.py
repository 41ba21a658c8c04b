"""Means of hidden states over the tokens of a prompt, however many forwards compute it.

Their sums are exact (`Ops.token_sums`), so neither the order of tokens nor where a prompt was cut changes a bit, on any
device. Where one token is no number, so is the mean.
"""

from __future__ import annotations

import torch

from cadence.kernels.interface.ops import SUM_SCALE


def means(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """sums [n, H + 1], counts [n] -> [n, H] float32"""
    values = (sums[:, :-1].double() / (counts.double() * SUM_SCALE)[:, None]).float()
    return values.masked_fill_(sums[:, -1:] > 0, torch.nan)
