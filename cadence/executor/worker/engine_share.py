"""What an engine has of experts that engines share, and how its forwards go with theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.core.contract.messages import BYSTANDER
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.distributed.collectives import CollectiveArea
from cadence.executor.worker.group_memory import PAGE
from cadence.executor.worker.rounds import AnyRounds, Rounds
from cadence.kernels.cpu.collectives import CollectiveMemory, CpuCollectives
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import ONE_RANK, CollectiveAbortedError, Collectives

Advance = Callable[[int, int, int], None]  # (step, first forward, number of forwards)


class NoShare:
    """All experts are this engine's own."""

    engines: Collectives = ONE_RANK

    def around(self, advance: Advance) -> Advance:
        return advance

    def check(self) -> None:
        """No other engine can be gone."""

    def meet(self) -> None:
        """There is no other engine to wait for."""


NO_SHARE = NoShare()


class EngineShare:
    def __init__(self, engines: Collectives, rounds: Rounds) -> None:
        self.engines = engines
        self._rounds = rounds

    def around(self, advance: Advance) -> Advance:
        """Each forward in a round of its own."""

        def in_round(step_id: int, first: int, count: int) -> None:
            if count != 1:
                raise ValueError(f"{count} forwards at once, where every engine takes part in each")
            self._rounds.begin()
            advance(step_id, first, count)
            self.check()
            self._rounds.end()

        return in_round

    def check(self) -> None:
        """Raises where another engine is gone: what was computed since the last check is nothing."""
        try:
            self.engines.check()
        except CollectiveAbortedError:
            raise CollectiveAbortedError(BYSTANDER) from None

    def meet(self) -> None:
        """Waits until all engines are here."""
        self.engines.all_reduce(torch.zeros(1))
        self.check()


def open_share(rounds: AnyRounds, device: Device) -> EngineShare | NoShare:
    if not isinstance(rounds, Rounds):
        return NO_SHARE
    assert isinstance(device, CpuDevice), "`check_shared` has said so"
    functions = CollectiveMemory(load_library())
    if functions.num_bytes(rounds.size) > rounds.memory.size - PAGE:
        raise MemoryError("engines have too little memory to share experts in")
    area = CollectiveArea(rounds.memory, functions)
    functions.init(area.address, rounds.size)  # all engines write the same
    ranks = CpuCollectives(device.calls, CpuLibrary(device.calls), area, rounds.rank, rounds.size)
    return EngineShare(ranks, rounds)
