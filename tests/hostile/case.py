"""One hostile request: what is sent, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.hostile.wire import Request


@dataclass(frozen=True)
class Case:
    number: int  # with the seed it names the case: see replay.py
    name: str
    request: Request
    known_fields: frozenset[str] | None = None  # names an error may blame; None = any
    leave_after: int | None = None  # bytes of the answer after which the client leaves
    expected: frozenset[int] = frozenset()  # statuses; empty = any that is allowed
    blamed: str = ""  # the field an error must name; "" = any that is known
    is_http: bool = True  # False: HTTP itself is violated, and the server may just hang up

    def __str__(self) -> str:
        return f"case {self.number}: {self.name} ({len(self.request.body)} bytes)"
