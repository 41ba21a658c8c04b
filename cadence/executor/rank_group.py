"""The ranks of an executor, wherever they run."""

from __future__ import annotations

from typing import Protocol

from cadence.process.messages import MessageReader, MessageWriter


class RankGroup(Protocol):
    """All ranks get every command; each has results and answers of its own. When one of them dies, `death` says how,
    and reading and writing raise ClosedError."""

    death: str  # why they cannot be used any more; "" = they can

    @property
    def pids(self) -> list[int]:
        """By rank; on whatever machine."""
        ...

    def command_writer(self) -> MessageWriter: ...

    def result_readers(self) -> list[MessageReader]:
        """By rank."""
        ...

    def busy_seconds(self) -> list[float]:
        """That each has computed."""
        ...

    def end(self) -> None:
        """Those that were told to stop have a moment; then all are killed. Everything is given back."""
        ...
