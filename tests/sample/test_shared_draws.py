"""Lines that ranks share among them get the tokens that one rank would draw for all."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.collectives import OneRank
from cadence.kernels.reference.ops import ReferenceOps
from cadence.sample.params import SamplingTable
from cadence.sample.sampler import Sampler
from cadence.sample.shared_draws import sharing

pytestmark = pytest.mark.device

VOCAB, LINES = 50, 7


@dataclass
class Told(OneRank):
    """A rank that keeps what it has to say, or is told what all have said."""

    rank: int = 0
    size: int = 3
    said: list[torch.Tensor] = field(default_factory=list)

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        self.said.append(x)
        return x


@pytest.mark.parametrize("count", [1, 2, 3, LINES])
def test_every_line_is_drawn_as_one_rank_draws_it(count: int) -> None:
    device, ops = CpuDevice(1), ReferenceOps()
    table = SamplingTable(device, 8)
    table.scalars.get("temperature")[:] = 1.0
    table.scalars.get("random")[:] = torch.arange(8) % 2
    table.scalars.get("seed")[:] = torch.arange(8)
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(1))
    lines = torch.arange(count, dtype=torch.int32), torch.arange(count, dtype=torch.int32) + 5
    wanted = Sampler(device, ops, table).draw(logits, *lines)
    ranks = [Told(rank) for rank in range(3)]
    found = [sharing(Sampler, rank)(device, ops, table).draw(logits, *lines) for rank in ranks]
    if count == 1:
        assert all(torch.equal(tokens, wanted[0]) for tokens, _ in found)
        return
    for place in range(2):
        parts = [rank.said[place] for rank in ranks]
        own = len(parts[0])
        out = wanted[place].new_empty(count)
        for rank, part in enumerate(parts):
            out[min(rank * own, count - own) :][:own] = part
        assert torch.equal(out, wanted[place]) and own < count
    assert sharing(Sampler, OneRank()) is Sampler
