"""Sums of hidden states over the tokens of a prompt, however many forwards compute it.

Numbers are added as integers, multiples of 2 ** -30: such a sum is exact, so neither the order of tokens nor where a
prompt was cut changes a bit of it, on any device.
"""

from __future__ import annotations

import torch

_SCALE = float(2**30)
_MOST = float(2**44)  # a multiple; 2 ** 18 tokens of these stay within 64 bits


def token_sums(hidden: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    """hidden [T, H], segments [T] int64: of `count` sums, the one each token belongs to -> [count, H] int64"""
    multiples = (hidden.double() * _SCALE).round_().clamp_(-_MOST, _MOST).to(torch.int64)
    return torch.zeros((count, hidden.shape[1]), dtype=torch.int64, device=hidden.device).index_add_(
        0, segments, multiples
    )


def means(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """sums [n, H], counts [n] -> [n, H] float32"""
    return (sums.double() / (counts.double() * _SCALE)[:, None]).float()
