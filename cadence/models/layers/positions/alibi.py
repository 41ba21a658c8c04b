"""ALiBi: what a key gets for its distance from the query, a slope for each head: Bloom, MPT."""

from __future__ import annotations

import torch

from cadence.kernels.interface.attention_batch import DistanceBias
from cadence.models.interface.build import BuildContext


def alibi_bias(build: BuildContext, heads: int, steepest: float = 8.0, factor: float = 1.0) -> DistanceBias:
    """A key at distance d before its query gets -factor * slope * d. Slopes are 2^(-steepest * i / n), i from 1 to n,
    the highest power of two that is not more than `heads`; further heads have every second of those of 2 n."""
    power = 1 << (heads.bit_length() - 1)
    exponents = [index / power for index in range(1, power + 1)]
    exponents += [index / (2 * power) for index in range(1, 2 * (heads - power), 2)]
    slopes = factor * 2.0 ** (-steepest * torch.tensor(exponents, dtype=torch.float64))
    reach = build.max_model_len
    distances = torch.arange(1 - reach, reach, dtype=torch.float64).clamp(max=0)
    table = slopes.to(build.device)[:, None] * distances.to(build.device)
    return DistanceBias(table.float())
