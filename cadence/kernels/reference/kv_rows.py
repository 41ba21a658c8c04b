"""Rows of a quantised KV cache: the key or the value of one token and head.

int8, float8  entries [..., D], followed by the four bytes of the float32 scale that they are multiples of
uint8         4 bits: for each run of 32 entries a float16 scale, a float16 minimum, and 16 bytes, of which byte i has
              entry i in its low half and entry i + 16 in its high half: minimum + scale * entry
"""

from __future__ import annotations

import torch

from cadence.core.model.kv_spec import FOUR_BIT_RUN, FOUR_BIT_RUN_BYTES, SCALE_BYTES

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}  # the largest entry
QUANTISED = (*MOST, torch.uint8)
_LEAST_ABSMAX = 1e-30  # a row below that is all zeros: its inverse scale would leave float32
_HALF = FOUR_BIT_RUN // 2


def quantise(x: torch.Tensor, dtype: torch.dtype, fixed: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., D] -> multiples [..., D] of dtype (ties to even) of scales [..., 1] float32: absmax / the largest entry,
    or of float8 `fixed`. A row with a number that is none has it as its scale, and zeros as entries."""
    x, most = x.float(), MOST[dtype]
    absmax = x.abs().amax(dim=-1, keepdim=True)
    usable = (absmax >= _LEAST_ABSMAX) & absmax.isfinite()
    scale, inverse = absmax / most, torch.full_like(absmax, most) / absmax
    if fixed and dtype is not torch.int8:
        scale = torch.where(absmax.isfinite(), fixed, absmax)
        inverse = torch.ones_like(absmax) / torch.full_like(absmax, fixed)
    entries = torch.where(usable, x * inverse, 0.0).clamp(-most, most)
    return (torch.round(entries) if dtype is torch.int8 else entries).to(dtype), scale


def pack_rows(x: torch.Tensor, dtype: torch.dtype, fixed: float = 0.0) -> torch.Tensor:
    """x [..., D] -> rows of dtype, one of QUANTISED."""
    if dtype is torch.uint8:
        return _pack_four(x.float())
    entries, scale = quantise(x, dtype, fixed)
    return torch.cat([entries.view(torch.uint8), scale.view(torch.uint8)], dim=-1).view(dtype)


def unpack_rows(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """rows of one of QUANTISED -> [..., dim] float32."""
    if rows.dtype is torch.uint8:
        return _unpack_four(rows)[..., :dim]
    scale = rows[..., -SCALE_BYTES:].contiguous().view(torch.uint8).view(torch.float32)
    return rows[..., :-SCALE_BYTES].float() * scale


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x [..., D] as it comes back from int8, float32."""
    return unpack_rows(pack_rows(x, torch.int8), x.shape[-1])


def _pack_four(x: torch.Tensor) -> torch.Tensor:
    dim = x.shape[-1]
    short = -dim % FOUR_BIT_RUN
    runs = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], short)], dim=-1).unflatten(-1, (-1, FOUR_BIT_RUN))
    low, high = runs.amin(dim=-1, keepdim=True), runs.amax(dim=-1, keepdim=True)
    scale, least = ((high - low) / 15.0).half(), low.half()
    inverse = torch.where(scale > 0.0, 1.0 / scale.float(), 0.0)
    quants = torch.round((runs - least.float()) * inverse).nan_to_num(0.0).clamp(0.0, 15.0).to(torch.uint8)
    if short:
        quants[..., -1, FOUR_BIT_RUN - short :] = 0
    halves = quants[..., :_HALF] | quants[..., _HALF:] << 4
    return torch.cat([scale.view(torch.uint8), least.view(torch.uint8), halves], dim=-1).flatten(-2)


def _unpack_four(rows: torch.Tensor) -> torch.Tensor:
    runs = rows.unflatten(-1, (-1, FOUR_BIT_RUN_BYTES))
    scale, least = (runs[..., at : at + 2].contiguous().view(torch.float16).float() for at in (0, 2))
    halves = runs[..., 4:]
    return (least + scale * torch.cat([halves & 15, halves >> 4], dim=-1).float()).flatten(-2)
