"""The other processes that serve the same address."""

from __future__ import annotations

from typing import Protocol

from cadence.core.front_messages import NOTHING_COUNTED, FrontCounts


class Peers(Protocol):
    async def counts(self) -> FrontCounts:
        """What all others have counted together, also those that are gone."""
        ...


class NoPeers:
    async def counts(self) -> FrontCounts:
        return NOTHING_COUNTED


NO_PEERS = NoPeers()
