"""The media of one request between its body and the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cadence.media.parts import MediaPart
from cadence.media.video import DEFAULT_SAMPLING, Sampling


def _nothing() -> None:
    """Of a request that holds nothing."""


class PendingMedia:
    """They may be large, data URLs above all: they are taken once, and there is nothing left then."""

    def __init__(self, parts: Sequence[MediaPart] = (), sampling: Sampling = DEFAULT_SAMPLING) -> None:
        self.places = tuple((part.kind, part.where) for part in parts)  # of all, also of those that were taken
        self.sampling = sampling
        self._parts = tuple(parts)
        self._when_read: Callable[[], None] = _nothing

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def names(self) -> dict[str, str]:
        """What the engine calls each -> the part of the request that has it."""
        counts: dict[str, int] = {}
        names: dict[str, str] = {}
        for kind, where in self.places:
            number = counts[kind] = counts.get(kind, -1) + 1
            names[f"multi_modal_data.{kind}[{number}]"] = where
        return names | {f"multi_modal_data.{kind}": "messages" for kind in counts}

    def take(self) -> tuple[MediaPart, ...]:
        parts, self._parts = self._parts, ()
        return parts

    def when_read(self, call: Callable[[], None]) -> None:
        """`call` gives back what the request's body holds, once nothing is read from it any more. May come twice."""
        self._when_read = call

    def done(self) -> None:
        self._when_read()


NO_PENDING = PendingMedia()
