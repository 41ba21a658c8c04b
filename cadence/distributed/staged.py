"""How ranks reach each other through the host: what the GPU has is copied there, the collectives and links of CPU
ranks do the rest, called by the stream. It works wherever those do: between any two GPUs, or two ranks of one, and
between machines."""

from __future__ import annotations

import torch

from cadence.device.host_calls import HostCalls
from cadence.kernels.cpu.collectives import CpuCollectives
from cadence.kernels.cpu.links import CpuStageLinks


class StagedExchange:
    name = "the host"

    def __init__(self, calls: HostCalls, host: CpuCollectives) -> None:
        """host: made with `calls`"""
        self._calls = calls
        self._host = host

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return self._host.all_reduce(self._calls.argument(x)).to(x.device, non_blocking=True)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        of_all = self._host.all_gather(self._calls.argument(x).view(-1))
        return of_all.to(x.device, non_blocking=True).view(self._host.size, *x.shape)


class StagedLinks:
    """`StageLinks` of GPUs."""

    def __init__(self, calls: HostCalls, host: CpuStageLinks, device: torch.device) -> None:
        """host: made with `calls`"""
        self.stage, self.count, self.is_last = host.stage, host.count, host.is_last
        self._calls = calls
        self._host = host
        self._device = device

    def send(self, x: torch.Tensor) -> None:
        self._host.send(self._calls.argument(x))

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._host.receive(shape, dtype).to(self._device, non_blocking=True)

    def broadcast(self, x: torch.Tensor) -> None:
        self._host.broadcast(self._calls.argument(x))

    def receive_broadcast(self, out: torch.Tensor) -> None:
        received = self._calls.empty(out.shape, out.dtype)
        self._host.receive_broadcast(received)
        out.copy_(received, non_blocking=True)

    def arrived(self) -> float:
        """Not known to the host when it asks: the stream is still on its way there."""
        return 0.0

    def check(self) -> None:
        self._host.check()
