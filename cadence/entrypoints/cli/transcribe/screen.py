"""What a user sees of a transcription while it goes on."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from cadence.entrypoints.speech.events import SpokenText, TranscriptEvent, TranscriptProgress

LINE_S = 5.0  # between two lines of progress where there is no terminal


class ShownWords:
    """The text of one recording as it is written, on a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def take(self, event: TranscriptEvent) -> None:
        if isinstance(event, SpokenText):
            self._out.write(event.text)
            self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()


class ProgressOfFile:
    """Lines on stderr that say how far a file was read: the first at once, and the last when it is done."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = 0.0  # when another line is due

    def take(self, event: TranscriptEvent) -> None:
        if not isinstance(event, TranscriptProgress):
            return
        now = time.monotonic()
        if now >= self._next or event.done >= event.total:
            self._next = now + LINE_S
            print(f"{self._name}: {event.done:.0f} of {event.total:.0f} s", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The last line was the last `Heard`."""
