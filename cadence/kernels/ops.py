"""The ops of the engine. `reference`, `triton` and `cpu` each offer them under these signatures."""

from __future__ import annotations

from typing import Protocol

import torch

from cadence.kernels.attention_batch import AttentionBatch, AttentionShape


class Ops(Protocol):
    name: str

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, in], weight [out, in], bias [out] or None -> [T, out]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., H], weight [H] (its dtype may be wider than x's); accumulates in float32, returns x's dtype."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual)."""
        ...

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * I] = (gate, up) -> silu(gate) * up, [T, I]."""
        ...

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * I] = (gate, up) -> gelu_tanh(gate) * up, [T, I]."""
        ...

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        """Rotates q [T, Hq, D] and k [T, Hk, D] in place, neox style, first rotary_dim entries of each head.

        positions [T] int64; cos_sin [max_len, rotary_dim] float32: cosines in the first half, sines in the second.
        q and k may be strided views of one projection (last dimension contiguous).
        """
        ...

    def write_kv(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Stores k, v [T, Hk, D] at slots [T] int64 of caches [num_blocks, Hk, block_size, D]."""
        ...

    def paged_attention(
        self,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        batch: AttentionBatch,
        group: int,
        shape: AttentionShape,
    ) -> torch.Tensor:
        """q [T, Hq, D], kv = caches [num_blocks, Hk, block_size, D] -> [T, Hq, D] (new, contiguous)."""
        ...

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """seeds [S] int64, positions [S] int64 -> [S, vocab] float32, a pure function of (seed, position, token id)."""
        ...
