"""Ops that are others in a row: what an implementation without a kernel of its own for them does."""

from __future__ import annotations

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.matrix import Norm
from cadence.kernels.interface.ops import NO_IDS, DrawParams, Ops, Pair, Rotation, Triple


def add_norm_linear(ops: Ops, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None) -> Pair:
    normed, total = ops.add_rms_norm(*stream, *norm)
    return ops.linear(normed, weight, bias), total


def add_norm_gated(
    ops: Ops, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool
) -> Pair:
    inner, total = add_norm_linear(ops, stream, norm, weight, bias)
    return ops.gelu_tanh_mul(inner) if gelu else ops.silu_mul(inner), total


def rope_write_kv(
    ops: Ops, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, batch: AttentionBatch, group: int
) -> torch.Tensor:
    q, k, v = qkv
    if rotation.norms:
        q, k = (ops.rms_norm(x, weight, rotation.eps) for x, weight in zip((q, k), rotation.norms, strict=True))
    if rotation.cos_sin.shape[1]:
        ops.rope(q, k, positions, rotation.cos_sin)
    ops.write_kv((k, v), kv, batch.slots[group], rotation.kv_scales)
    return q


def draw(
    ops: Ops,
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    params: DrawParams,
    ids: torch.Tensor = NO_IDS,
) -> Pair:
    """Waits for the device to know which lines are random, and how high ids go."""
    if ids.numel():
        wide = logits.new_full((logits.shape[0], int(ids.max()) + 1), float("-inf"))
        logits = wide.index_copy_(1, ids.long(), logits)
    values, rows = logits.float(), rows.long()
    lines = params.random[rows].nonzero()[:, 0]
    if lines.numel():
        values = values / params.temperatures[rows, None]
        seeds = params.seeds[rows[lines]]
        values[lines] += ops.gumbel_noise(seeds, positions[lines].long(), logits.shape[1])
    best = values.max(dim=-1)
    return best.indices.to(torch.int32), best.values
