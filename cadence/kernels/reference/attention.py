"""Paged attention written for the reader: gather each sequence through its block table, softmax in float32."""

from __future__ import annotations

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape, Sees
from cadence.kernels.reference.kv_rows import QUANTISED, rounded, unpack_rows


def paged_attention(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    batch: AttentionBatch,
    group: int,
    shape: AttentionShape,
) -> torch.Tensor:
    """q [T, Hq, D], kv = caches as for `Ops.write_kv` -> [T, Hq, D]. Waits for the device: an oracle."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    starts, seq_lens, rows = batch.query_start.tolist(), batch.seq_lens.tolist(), batch.rows.tolist()
    block_size = kv[0].shape[2]
    wide = rounded(q) if kv[0].dtype is torch.int8 else q.float()
    for row, seq_len, start, end in zip(rows, seq_lens, starts, starts[1:], strict=False):
        if start == end:
            continue
        table = batch.block_tables[group][row, : (seq_len + block_size - 1) // block_size].long()
        keys, values = (_gather(cache, table, seq_len, shape.head_dim) for cache in kv)
        out[start:end] = _attend(wide[start:end], keys, values, shape, batch.sees).to(q.dtype)
    return out


def _gather(cache: torch.Tensor, table: torch.Tensor, seq_len: int, dim: int) -> torch.Tensor:
    """The first seq_len entries of one sequence, [Hk, seq_len, D] float32."""
    if cache.dtype in QUANTISED:
        blocks = unpack_rows(cache.view(torch.uint8)[table].view(cache.dtype), dim)  # [n, Hk, block_size, D]
    else:
        blocks = cache[table].float()
    return blocks.transpose(0, 1).flatten(1, 2)[:, :seq_len]


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: AttentionShape, sees: Sees
) -> torch.Tensor:
    """q [n, Hq, D] are the last n positions of keys, values [Hk, L, D] -> [n, Hq, D]."""
    num_queries, seq_len = q.shape[0], keys.shape[1]
    repeat = shape.num_heads // shape.num_kv_heads
    keys, values = keys.repeat_interleave(repeat, dim=0), values.repeat_interleave(repeat, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", q, keys) * shape.scale
    if shape.softcap > 0.0:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    _, after = shape.seen_around(sees)
    query_pos = torch.arange(seq_len - num_queries, seq_len, device=q.device)[:, None]
    first_seen = _first_seen(query_pos, shape)
    key_pos = torch.arange(seq_len, device=q.device)[None, :]
    if reach := shape.bias.reach:
        distance = (key_pos - query_pos).clamp(1 - reach, reach - 1)
        scores = scores + shape.bias.table[:, distance + reach - 1]
    hidden = (key_pos < first_seen) | (key_pos > query_pos + after)
    return torch.einsum("hqk,hkd->qhd", torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1), values)


def _first_seen(query_pos: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """Positions of queries -> those of the first keys that they see; below 0: all from the beginning on."""
    if shape.chunk:
        return query_pos - query_pos % shape.chunk
    before, _ = shape.seen_around(Sees.CAUSAL)
    return query_pos - before
