"""Layers of a tower over several contents at once: every token sees all tokens of its own part, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.attention_batch import AttentionBatch, Sees
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.media import MODEL_ROPE, RopeRows
from cadence.models.interface.model import ForwardContext, LayerCache

_BLOCK = 16  # tokens


def packed_context(
    lengths: Sequence[int],
    kv: LayerKV,
    num_layers: int,
    like: torch.Tensor,
    ops: Ops,
    rope: RopeRows = MODEL_ROPE,
) -> ForwardContext:
    """lengths: of the parts, none 0. like: of the dtype and on the device that activations have. All layers keep their
    keys in one place, one after another."""
    lengths_np = np.array(lengths, dtype=np.int32)
    start_np = np.concatenate([[0], np.cumsum(lengths_np)]).astype(np.int32)
    counts_np = -(-lengths_np // _BLOCK)
    first_np = np.cumsum(counts_np) - counts_np
    table_np = (first_np[:, None] + np.arange(counts_np.max())).astype(np.int32)
    slots_np = np.arange(start_np[-1], dtype=np.int64) + np.repeat(first_np * _BLOCK - start_np[:-1], lengths_np)

    def upload(array_np: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array_np).to(like.device)

    shape = (int(counts_np.sum()), kv.num_kv_heads, _BLOCK, kv.head_dim)
    k, v = torch.zeros((2, *shape), dtype=like.dtype, device=like.device)
    batch = AttentionBatch(
        rows=upload(np.arange(len(lengths_np), dtype=np.int32)),
        query_start=upload(start_np),
        seq_lens=upload(lengths_np),
        block_tables=(upload(table_np),),
        slots=(upload(slots_np),),
        num_single=0,
        max_query_len=int(lengths_np.max()),
        sees=Sees.BOTH_WAYS,
    )
    return ForwardContext(ops=ops, batch=batch, caches=[LayerCache(0, k, v)] * num_layers, rope=rope)
