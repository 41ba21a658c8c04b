"""Logits of tokens that a grammar does not allow."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.triton.common.launch import quick

_BLOCK = 2048


@quick
@triton.jit
def mask_tokens(logits_ptr, masks_ptr, mask_of_line_ptr, line_stride, mask_stride, vocab, BLOCK: tl.constexpr):
    """Program (l, b) takes columns [BLOCK * b, BLOCK * (b + 1)) of line l. Only what is barred is written, and
    of that nothing that is not finite."""
    line = tl.program_id(0).to(tl.int64)
    mask = tl.load(mask_of_line_ptr + line)
    if mask >= 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        word = tl.load(masks_ptr + mask.to(tl.int64) * mask_stride + column // 32, column < vocab, other=-1)
        barred = (((word >> (column % 32)) & 1) == 0) & (column < vocab)
        here = logits_ptr + line * line_stride + column
        logit = tl.load(here, barred, other=0.0).to(tl.float32)
        nothing = tl.full([BLOCK], float("-inf"), tl.float32).to(logits_ptr.dtype.element_ty)
        tl.store(here, nothing, mask=barred & (tl.abs(logit) < float("inf")))


def apply_token_mask(logits: torch.Tensor, masks: torch.Tensor, mask_of_line: torch.Tensor) -> None:
    lines, vocab = logits.shape
    mask_tokens[(lines, triton.cdiv(vocab, _BLOCK))](
        logits, masks, mask_of_line, logits.stride(0), masks.stride(0), vocab, BLOCK=_BLOCK
    )
