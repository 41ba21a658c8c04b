"""Logits processors of all requests that run on the host."""

from __future__ import annotations

from cadence.scheduler.feature import HostFeature
from cadence.scheduler.request_state import RequestState


class HostBound(HostFeature):
    """The host has a say between any two forwards of every request: there are no bursts, no drafts."""

    name = "host_bound"

    def join(self, request: RequestState) -> None:
        request.needs_host = True
