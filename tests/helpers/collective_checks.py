"""All that ranks compute together, compared with what the reference makes of the tensors of all of them."""

from __future__ import annotations

import torch

from cadence.distributed.gpu_collectives import ONE_SHOT_BYTES
from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.reference import collectives as reference

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = [(1, 3), (7, 129), (64, 512), (3, ONE_SHOT_BYTES // 2 + 4)]


def tensors(shape: tuple[int, ...], dtype: torch.dtype, seed: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]


def check_all(ranks: Collectives, device: torch.device) -> None:
    for seed, shape in enumerate(SHAPES):
        for dtype in DTYPES:
            every = [each.to(device) for each in tensors(shape, dtype, seed, ranks.size)]
            own = every[ranks.rank]
            assert torch.equal(ranks.all_reduce(own), reference.all_reduce(every))  # of two, any order is the same
            assert torch.equal(ranks.all_gather(own), reference.all_gather(every))
            whole = torch.cat(every, dim=-1)[:, : max(ranks.size * shape[1] - 1, shape[1])]
            start = min(ranks.rank * shape[1], whole.shape[1] - shape[1])
            assert torch.equal(ranks.all_gather(whole.narrow(1, start, shape[1]), whole.shape[1]), whole)
            ids = torch.arange(shape[0], dtype=torch.int32, device=device) * 5 % (4 * ranks.size)
            assert torch.equal(ranks.all_pick(own, ids, 4), reference.all_pick(every, ids, 4))
            assert torch.equal(ranks.own_ids(ids, range(2, 5)), reference.own_ids(ids, range(2, 5)))
            tokens = torch.arange(5, dtype=torch.int32, device=device) + 100 * ranks.rank
            assert ranks.all_gather(tokens)[-5:].tolist() == [100 * (ranks.size - 1) + each for each in range(5)]
    ranks.check()
