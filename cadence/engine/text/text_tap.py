"""Who takes text as it comes, past the outputs that readers get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextTap(Protocol):
    @property
    def is_ready(self) -> bool:
        """Whether `put` may be called now. While it is not, the reader gets outputs, which can be joined."""
        ...

    def put(self, index: int, text: str, token_ids: Sequence[int]) -> None:
        """Of one of a request's completions: what it says next. Never its last words. It must be quick."""
        ...


class NoTap:
    is_ready = False

    def put(self, index: int, text: str, token_ids: Sequence[int]) -> None:
        raise AssertionError("it is never ready")


NO_TAP = NoTap()
