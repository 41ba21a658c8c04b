"""Gumbel noise as a pure function of (seed, position, token id): Philox4x32-10, then two logarithms in float64.

Key = the seed's low and high half; counter = (token id // 4, position low, position high, 0); token id % 4 picks one
of the four output words h. u = (h + 0.5) / 2**32 lies strictly between 0 and 1; the noise is -log(-log(u)), computed
in float64 and rounded once, so that devices whose logarithms differ in the last bit still agree.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_CHUNK = 1 << 20  # noise values computed at once: bounds the int64 temporaries to a few dozen MB


def philox(counter: list[torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """Four int64 tensors holding 32-bit words, and two of key, broadcast together -> four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # Products reach 2**64 and wrap in int64; both halves of the bits are still right.
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (high >> 32 & _MASK) ^ c1 ^ k0, high & _MASK, (low >> 32 & _MASK) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """seeds [S] int64, positions [S] int64 -> [S, vocab_size] float32."""
    noise = torch.empty((seeds.shape[0], vocab_size), dtype=torch.float32, device=seeds.device)
    rows = max(_CHUNK // max(vocab_size, 1), 1)
    for start in range(0, seeds.shape[0], rows):
        part = slice(start, start + rows)
        noise[part] = _gumbel_rows(seeds[part, None], positions[part, None], vocab_size)
    return noise


def _gumbel_rows(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """seeds, positions [s, 1] -> [s, vocab_size]."""
    quads = torch.arange((vocab_size + 3) // 4, dtype=torch.int64, device=seeds.device)[None, :]
    zero = torch.zeros_like(seeds)
    words = philox([quads, positions & _MASK, positions >> 32 & _MASK, zero], (seeds & _MASK, seeds >> 32 & _MASK))
    uniform = (torch.stack(words, dim=-1).flatten(1)[:, :vocab_size].to(torch.float64) + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform)).to(torch.float32)
