"""The most likely tokens of a line: one answer for every k, batch and device, also where logits are equal."""

from __future__ import annotations

import torch


def top_tokens(logits: torch.Tensor, k: int) -> torch.Tensor:
    """logits [n, V] float32 -> [n, k] int64 token ids, most likely first, the lower id first among equals.

    Selects on keys that are all different (the logit's bits in numeric order, then the id), so that the first j
    columns are the answer for j.
    """
    if k == 0:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    vocab_size = logits.shape[-1]
    ordered = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    ordered ^= ordered >> 31 & 0x7FFFFFFF
    descending_ids = torch.arange(vocab_size - 1, -1, -1, device=logits.device)
    keys = ordered.to(torch.int64).bitwise_left_shift_(32).add_(descending_ids)  # in place: it is twice as large
    return (vocab_size - 1) - (keys.topk(k, dim=-1).values & 0xFFFFFFFF)
