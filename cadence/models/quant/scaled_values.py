"""What scaled numbers stand for, with the bits that the matrices of checkpoints have."""

from __future__ import annotations

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.quant.fp4 import fp4_values

_CHUNK = 1 << 22  # elements at once; bounds temporaries


def values_of_numbers(found: ScaledNumbers) -> torch.Tensor:
    """[rows, cols] in the type of the scales, each product rounded once; of E2M1 bfloat16."""
    rows, cols = found.numbers.shape
    group = cols // found.scales.shape[1]
    kind = torch.bfloat16 if found.is_fp4 else found.scales.dtype
    out = torch.empty((rows, cols), dtype=kind)
    step = max(1, _CHUNK // cols)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        numbers, scales = found.numbers[part], found.scales[part]
        if found.is_fp4:
            out[part] = fp4_values(numbers, scales, group)
            continue
        runs = numbers.view(numbers.shape[0], -1, group)
        zeros = found.zeros if isinstance(found.zeros, int) else found.zeros[part].unsqueeze(2)
        if found.table is not None:
            whole = found.table[runs.int()]
        else:
            whole = runs if runs.dtype.is_floating_point else runs.to(torch.int16) - zeros
        out[part] = (whole.to(kind) * scales.unsqueeze(2)).view(numbers.shape)
    return out
