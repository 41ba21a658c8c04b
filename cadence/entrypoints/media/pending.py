"""The media of one request between its body and the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cadence.media.parts import MediaPart
from cadence.media.video import DEFAULT_SAMPLING, Sampling

NOTHING_SAID: Mapping[str, Any] = {}


def _nothing() -> None:
    """Of a request that holds nothing."""


class PendingMedia:
    """They may be large, data URLs above all: they are taken once, and there is nothing left then."""

    def __init__(
        self,
        parts: Sequence[MediaPart] = (),
        sampling: Sampling = DEFAULT_SAMPLING,
        processor: Mapping[str, Any] = NOTHING_SAID,
    ) -> None:
        """processor: `mm_processor_kwargs`"""
        self.places = tuple((part.kind, part.where) for part in parts)  # of all, also of those that were taken
        self.sampling = sampling
        self.beside = beside(parts, processor)
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


def beside(parts: Sequence[MediaPart], processor: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a prompt has beside `multi_modal_data`: what clients call its media, and how they are prepared."""
    found: dict[str, Any] = {"mm_processor_kwargs": dict(processor)} if processor else {}
    if any(part.uuid for part in parts):
        kinds = dict.fromkeys(part.kind for part in parts)
        found["multi_modal_uuids"] = {
            kind: [part.uuid or None for part in parts if part.kind == kind] for kind in kinds
        }
    return found


NO_PENDING = PendingMedia()
