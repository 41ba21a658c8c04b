"""The types of elements that kernels know, by the numbers of commands.h."""

from __future__ import annotations

import torch

from cadence.kernels.cpu.runtime.table import TABLE

_NUMBERS = TABLE.enums["dtype"]
DTYPES = {
    torch.float32: _NUMBERS["F32"],
    torch.bfloat16: _NUMBERS["BF16"],
    torch.float16: _NUMBERS["F16"],
}
CACHE_DTYPES = {
    **DTYPES,
    torch.int8: _NUMBERS["I8"],
    torch.float8_e4m3fn: _NUMBERS["E4M3"],
    torch.float8_e5m2: _NUMBERS["E5M2"],
    torch.uint8: _NUMBERS["I4"],
}
