"""What ranks on one machine exchange through memory of their GPUs: each reads the others' itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cadence.device.cuda import CudaDevice
from cadence.device.driver import Driver
from cadence.kernels.triton.peers import NUM_BLOCKS, area_bytes, exchange


@dataclass(frozen=True, slots=True)
class PeerArea:
    """Memory of this rank that the others open, and theirs. It lasts as long as the process."""

    driver: Driver
    slot_bytes: int  # of one message
    address: int
    handle: bytes  # by which others open it

    def open(self, handle: bytes) -> int:
        """Another rank's -> its address here"""
        return self.driver.open_handle(handle)


def new_area(driver: Driver, slot_bytes: int) -> PeerArea:
    address = driver.allocate(area_bytes(slot_bytes))
    return PeerArea(driver, slot_bytes, address, driver.handle_of(address))


class PeerExchange:
    name = "memory that all reach"

    def __init__(self, device: CudaDevice, rank: int, area: PeerArea, addresses: Sequence[int]) -> None:
        """addresses: of the areas, by rank, as this process has them"""
        self._rank = rank
        self._area = area
        self._areas = torch.tensor(addresses, dtype=torch.int64, device=device.torch_device)
        self._counts = torch.zeros(NUM_BLOCKS, dtype=torch.int32, device=device.torch_device)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return self._exchange(x, sums=True)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._exchange(x, sums=False)

    def _exchange(self, x: torch.Tensor, sums: bool) -> torch.Tensor:
        return exchange(x.contiguous(), self._areas, self._counts, self._rank, self._area.slot_bytes, sums)
