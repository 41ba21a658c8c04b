"""What models share that answers at one address share: kept responses, whichever model made them."""

from __future__ import annotations

from collections.abc import Callable

from cadence.entrypoints.server.responses.client import OwnStore, ResponseClient, StoreLink
from cadence.entrypoints.server.routes.peers import NoPeers


class SharedPeers:
    def __init__(self) -> None:
        self._store = OwnStore(self._cancel)
        self._cancels: dict[str, Callable[[str], None]] = {}  # by model
        self.client = ResponseClient(lambda cancel: self._store, _abort_nothing)  # of requests that name no model

    def of(self, name: str) -> ModelPeers:
        """For one model, which is being loaded."""
        return ModelPeers(self._store, lambda cancel: self._cancels.update({name: cancel}))

    def forget(self, name: str) -> None:
        """Its responses are kept, and none of it runs."""
        self._cancels.pop(name, None)

    def _cancel(self, response_id: str) -> None:
        """One of them runs it; the others do not know it."""
        for cancel in list(self._cancels.values()):
            cancel(response_id)


class ModelPeers(NoPeers):
    def __init__(self, store: OwnStore, register: Callable[[Callable[[str], None]], None]) -> None:
        self._store = store
        self._register = register

    def open_store(self, cancel: Callable[[str], None]) -> StoreLink:
        self._register(cancel)
        return self._store


async def _abort_nothing(request_id: str) -> None:
    pass
