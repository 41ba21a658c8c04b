"""Sums of hidden states over the tokens of a prompt, however many forwards compute it.

Numbers are added as integers, multiples of 2 ** -30: such a sum is exact, so neither the order of tokens nor where a
prompt was cut changes a bit of it, on any device. One more sum counts the tokens that are no numbers: where there is
one, so is the mean.
"""

from __future__ import annotations

import torch

_SCALE = float(2**30)
_MOST = float(2**44)  # a multiple; 2 ** 18 tokens of these stay within 64 bits


def token_sums(hidden: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    """hidden [T, H], segments [T] int64: of `count` sums, the one each token belongs to -> [count, H + 1] int64"""
    is_lost = ~torch.linalg.vector_norm(hidden, torch.inf, dim=1, keepdim=True).isfinite()
    kept = hidden.masked_fill(is_lost, 0.0)
    multiples = kept.double().mul_(_SCALE).round_().clamp_(-_MOST, _MOST).to(torch.int64)
    sums = torch.zeros((count, hidden.shape[1] + 1), dtype=torch.int64, device=hidden.device)
    sums[:, :-1].index_add_(0, segments, multiples)
    sums[:, -1:].index_add_(0, segments, is_lost.to(torch.int64))
    return sums


def means(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """sums [n, H + 1], counts [n] -> [n, H] float32"""
    values = (sums[:, :-1].double() / (counts.double() * _SCALE)[:, None]).float()
    return values.masked_fill_(sums[:, -1:] > 0, torch.nan)
