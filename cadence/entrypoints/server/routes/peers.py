"""The other processes that serve the same address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cadence.core.contract.front_messages import NOTHING_COUNTED, FrontCounts
from cadence.entrypoints.server.http.tenants import new_salt
from cadence.entrypoints.server.responses.client import OwnStore, StoreLink
from cadence.entrypoints.server.routes.served_adapters import AdapterLink, OwnAdapters, ServedAdapters


class Peers(Protocol):
    async def counts(self) -> FrontCounts:
        """What all others have counted together, also those that are gone."""
        ...

    def open_store(self, cancel: Callable[[str], None]) -> StoreLink:
        """Where all keep their responses. cancel: ends one that runs here"""
        ...

    def open_adapters(self, served: ServedAdapters) -> AdapterLink:
        """served: what this process serves"""
        ...

    @property
    def tenant_salt(self) -> bytes:
        """By which all know a tenant under one name."""
        ...

    @property
    def tenant_ledger(self) -> str:
        """Where all keep what tenants have asked for; "" = there is no other process."""
        ...


class NoPeers:
    async def counts(self) -> FrontCounts:
        return NOTHING_COUNTED

    def open_store(self, cancel: Callable[[str], None]) -> StoreLink:
        return OwnStore(cancel)

    def open_adapters(self, served: ServedAdapters) -> AdapterLink:
        return OwnAdapters(served)

    @property
    def tenant_salt(self) -> bytes:
        return new_salt()

    @property
    def tenant_ledger(self) -> str:
        return ""


NO_PEERS = NoPeers()
