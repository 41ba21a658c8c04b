"""Collectives of ranks that each have a device: torch.distributed, by NCCL between GPUs, whose calls a graph captures.

Messages of decode steps are small: their sum is one gather and one addition in the order of ranks, the same on all.
Large ones are added by the library, which has an order of its own that is the same at every run.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from cadence.kernels.reference import collectives as reference

ONE_SHOT_BYTES = 1 << 18  # of a message that is gathered rather than reduced


class TorchCollectives:
    def __init__(self, backend: str, store: Path, rank: int, size: int, device: torch.device) -> None:
        """Waits for the others. backend: "nccl", or "gloo" for tensors of the host; store: a file that all ranks open,
        empty at first; device: of all tensors to come"""
        self.rank, self.size = rank, size
        bound = device if device.type == "cuda" else None
        shared = dist.FileStore(str(store), size)
        dist.init_process_group(backend, store=shared, rank=rank, world_size=size, device_id=bound)

    def close(self) -> None:
        dist.destroy_process_group()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if x.nbytes <= ONE_SHOT_BYTES:
            return reference.all_reduce(list(self._of_all(x).unbind()))
        total = x.float() if x.dtype is not torch.float32 else x.clone()
        dist.all_reduce(total)
        return total.to(x.dtype)

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        own = x.shape[-1]
        width = width or self.size * own
        out = x.new_empty((*x.shape[:-1], width))
        for rank, part in enumerate(self._of_all(x).unbind()):
            out.narrow(-1, min(rank * own, width - own), own).copy_(part)
        return out

    def own_ids(self, ids: torch.Tensor, own: range) -> torch.Tensor:
        return reference.own_ids(ids, own)

    def all_pick(self, x: torch.Tensor, ids: torch.Tensor, each: int) -> torch.Tensor:
        """Others' lines are zero here, so a sum has the bits of the one that counts."""
        is_own = (ids // each == self.rank).unsqueeze(1)
        found = torch.where(is_own, x, torch.zeros((), dtype=x.dtype, device=x.device))
        dist.all_reduce(found)
        return found

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        out = x.clone()
        dist.broadcast(out, root)
        return out

    def check(self) -> None:
        """A rank that is gone is noticed by who watches the processes, and these end."""

    def _of_all(self, x: torch.Tensor) -> torch.Tensor:
        """[ranks, *x.shape]"""
        out = x.new_empty((self.size, *x.shape))
        dist.all_gather_into_tensor(out.view(-1), x.contiguous().view(-1))
        return out
