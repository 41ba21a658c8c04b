"""Text that comes piece by piece and is joined once, so that holding it costs what its length is."""

from __future__ import annotations


class HeldText:
    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def joined(self) -> str:
        return "".join(self._parts)

    def take(self) -> str:
        """All of it; nothing is held any more."""
        text = self.joined()
        self._parts.clear()
        return text

    def clear(self) -> None:
        self._parts.clear()
