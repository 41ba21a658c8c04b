"""Stop strings in streamed text, wherever the pieces of text happen to be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cadence.core.errors import InvalidRequestError


class StopState(Protocol):
    """One request's text between the detokeniser and the user."""

    matched: str | None  # the stop string that ended the text

    def push(self, delta: str, check: bool = True) -> str:
        """Takes new text, gives back what may be shown. `check=False` (before min_tokens): nothing can match yet."""

    def finish(self) -> str:
        """The request ended for another reason: what was held back may be shown."""

    @property
    def text(self) -> str:
        """All that was released."""


class NullStop:
    """No stop strings: text passes through."""

    matched: str | None = None

    def __init__(self) -> None:
        self._parts: list[str] = []

    def push(self, delta: str, check: bool = True) -> str:
        self._parts.append(delta)
        return delta

    def finish(self) -> str:
        return ""

    @property
    def text(self) -> str:
        return _joined(self._parts)


class StopStrings:
    """The match that ends first wins; of those that end together, the longest.

    That rule depends on the text alone, not on how it was cut, and it is what reading character by character finds.
    Until a match, text that may be the beginning of one is held back (with `include_in_output` there is no need to).
    A match must end in checked text, but may begin in text that came before.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        if not all(stops):
            raise InvalidRequestError("stop strings must not be empty", field="stop")
        self._matchers = [_Matcher(stop) for stop in stops]
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._include = include_in_output
        self._partial = 0  # characters at the end of the text that may be the beginning of a match
        self._held = ""  # those of them that wait: all, or none when stop strings are part of the output
        self._parts: list[str] = []
        self.matched: str | None = None

    def push(self, delta: str, check: bool = True) -> str:
        if self.matched is not None:
            return ""
        if not self._partial and self._first_chars.isdisjoint(delta):
            self._parts.append(delta)
            return delta
        hits = [(end, -len(m.stop), m.stop) for m in self._matchers if (end := m.feed(delta, check)) >= 0]
        if hits:
            end, _, stop = min(hits)
            return self._stop_at(self._held + delta[:end], stop)
        self._partial = max(m.matched for m in self._matchers)
        pending = self._held + delta
        return self._release(pending, len(pending) - (0 if self._include else self._partial))

    def finish(self) -> str:
        return self._release(self._held, len(self._held))

    @property
    def text(self) -> str:
        return _joined(self._parts)

    def _stop_at(self, pending: str, stop: str) -> str:
        """`pending` ends with `stop`, and none of the stop has been released unless it is to be included."""
        self.matched = stop
        released = self._release(pending, len(pending) - (0 if self._include else len(stop)))
        self._held = ""
        return released

    def _release(self, pending: str, length: int) -> str:
        released, self._held = pending[:length], pending[length:]
        self._parts.append(released)
        return released


def stop_state(stops: Sequence[str], include_in_output: bool = False) -> StopState:
    return StopStrings(stops, include_in_output) if stops else NullStop()


class _Matcher:
    """Knuth, Morris and Pratt: how much of the beginning of `stop` the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0  # 0 <= matched < len(stop) between calls
        self._fallback = _borders(stop)

    def feed(self, delta: str, check: bool) -> int:
        """The index in `delta` just past the first match, or -1."""
        stop, fallback, matched = self.stop, self._fallback, self.matched
        for index, char in enumerate(delta):
            while matched and stop[matched] != char:
                matched = fallback[matched]
            matched += stop[matched] == char
            if matched == len(stop):
                if check:
                    return index + 1
                matched = fallback[matched]
        self.matched = matched
        return -1


def _borders(stop: str) -> list[int]:
    """[n] -> length of the longest proper prefix of stop[:n] that is also its suffix."""
    borders = [0, 0]
    for char in stop[1:]:
        k = borders[-1]
        while k and stop[k] != char:
            k = borders[k]
        borders.append(k + (stop[k] == char))
    return borders


def _joined(parts: list[str]) -> str:
    """Joins in place, so that asking for the text again and again does not join the same parts again."""
    if len(parts) > 1:
        parts[:] = ["".join(parts)]
    return parts[0] if parts else ""
