"""Matrices of quantised checkpoints as the GPU's kernels read them: the same numbers, arranged anew."""

from __future__ import annotations

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.triton.lowbit.block_planes import Planes, planes_of_fp4
from cadence.kernels.triton.lowbit.few_bits import BLOCK, SPAN, Stored, in_halves
from cadence.kernels.triton.lowbit.few_bits_table import code_table

_BYTES = (torch.int8, torch.float8_e4m3fn)


def of_numbers(stored: ScaledNumbers, device: torch.device) -> Stored | Planes | None:
    """On that device; None where no kernel multiplies such numbers."""
    rows, cols = stored.numbers.shape
    scales = stored.scales.to(device, torch.float32).contiguous()
    if stored.is_fp4:
        return planes_of_fp4(stored.numbers.to(device), scales)
    group = cols // scales.shape[1]
    none = scales.new_zeros(0)
    if stored.table is not None:
        if group % SPAN or float(stored.table.abs().max()) != 1.0:
            return None
        codes = in_halves(stored.numbers.to(device))
        return Stored(codes, scales, none, cols, table=code_table(stored.table).to(device))
    if group != cols and group % BLOCK:
        return None
    if stored.numbers.dtype in _BYTES:
        return Stored(stored.numbers.to(device).contiguous(), scales, none, cols)
    if stored.bits == 8:
        if not _is_centred(stored):
            return None
        quants = (stored.numbers.to(device) ^ 128).contiguous().view(torch.int8)
        return Stored(quants, scales, none, cols, weight_only=True)
    if stored.bits > 4 or cols % SPAN or (group % SPAN and group != BLOCK):
        return None
    zeros = torch.as_tensor(stored.zeros, device=device).to(torch.float32).expand(rows, scales.shape[1]).contiguous()
    has_none = stored.bits == 4 and _is_centred(stored)
    return Stored(in_halves(stored.numbers.to(device)), scales, none if has_none else zeros, cols)


def _is_centred(stored: ScaledNumbers) -> bool:
    return bool((torch.as_tensor(stored.zeros) == 1 << (stored.bits - 1)).all())
