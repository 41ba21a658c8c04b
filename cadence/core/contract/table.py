"""The life of per-request state on the device: added with a row, removed with it, flushed once a step."""

from __future__ import annotations

from typing import Protocol

from cadence.core.contract.step import NewRow


class RequestTable(Protocol):
    """State of one feature, one entry per row.

    `add` and `remove` only stage; `flush` makes what was staged visible to the device, once per step.
    """

    def add(self, row: int, request: NewRow) -> None: ...

    def remove(self, row: int) -> None: ...

    def flush(self) -> None: ...
