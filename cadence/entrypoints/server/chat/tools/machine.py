"""What every parser is built on: a buffer that states read."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

from cadence.entrypoints.server.chat.tools.arguments import CallReader
from cadence.entrypoints.server.chat.tools.base import CallBroken, Piece, Text
from cadence.entrypoints.server.chat.tools.held_text import HeldText

_CHUNK = 1024  # characters; a header that is waited for is shorter


class Buffer:
    """Text that has come and is not read yet. A state is a method that reads `rest` by `skip` and says whether it got
    on; it is asked again until it did not. A state decides by characters alone, never by where a piece ended: when it
    cannot decide yet, it waits."""

    def __init__(self) -> None:
        self.rest = ""
        self.final = False  # no more text will come

    def skip(self, count: int) -> str:
        read, self.rest = self.rest[:count], self.rest[count:]
        return read

    def skip_all(self, chars: str) -> str:
        return self.skip(len(self.rest) - len(self.rest.lstrip(chars)))

    def find(self, *tags: str) -> tuple[int, str]:
        """The first of `tags` in the rest, the longest where several begin, and where it is; "" and where one may be
        beginning when a tag may still come that is as early."""
        found = [(at, -len(tag), tag) for tag in tags if (at := self.rest.find(tag)) >= 0]
        at, _, tag = min(found, default=(len(self.rest), 0, ""))
        if self.final:
            return at, tag
        begun = min((len(self.rest) - overlap(self.rest, tag) for tag in tags), default=at)
        return (at, tag) if tag and at < begun else (begun, "")

    def could_be(self, *tags: str) -> bool:
        """Whether the rest is nothing, or a true beginning of a tag, so that one has to wait."""
        return not self.final and any(tag != self.rest and tag.startswith(self.rest) for tag in tags)


class Machine(Buffer):
    """What reads tool calls: its pieces, and the white space around calls, which is dropped."""

    def __init__(self, begin: Callable[[], bool]) -> None:
        super().__init__()
        self.state = begin
        self.calls = 0  # begun so far
        self._later: deque[str] = deque()  # text that follows `rest`, in chunks
        self._num_later = 0  # characters of these
        self._ended = False  # nothing follows `_later`
        self._gap = HeldText()  # white space (and separators) that is dropped if a call comes next
        self._spoke = False  # there was text that was not white space
        self._written: list[str] = []  # of the call that is being read: all its text
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        self._later.extend(chunks(text))
        self._num_later += len(text)
        self._run()
        return self._taken()

    def finish(self) -> list[Piece]:
        self._ended = True
        self._run()
        self.say(self.rest)
        self.rest = ""
        if not self.calls:
            self._flush_gap()
        return self._taken()

    def _run(self) -> None:
        """Chunk by chunk: `rest` stays short, however much text there is or is put back."""
        while True:
            chunk = self._later.popleft() if self._later else ""
            self._num_later -= len(chunk)
            self.rest += chunk
            self.final = self._ended and not self._later
            while (self.rest or self.final) and self.state():
                if len(self.rest) > 2 * _CHUNK:
                    self._later.extendleft(reversed(chunks(self.rest[_CHUNK:])))
                    self._num_later += len(self.rest) - _CHUNK
                    self.rest = self.rest[:_CHUNK]
                    self.final = False
            if not self._later:
                return

    def say(self, text: str) -> None:
        """Text for the reader. White space before the first call and right after calls waits for what follows."""
        if self._gap or not self._spoke:
            words = text.lstrip()
            self._gap.add(text[: len(text) - len(words)])
            text = words
        if text:
            self._flush_gap()
            self._pieces.append(Text(text))
            self._spoke = True

    def separate(self, text: str) -> None:
        """Text between calls that is dropped if another call comes, and said if words come."""
        self._gap.add(text)

    def emit(self, pieces: Sequence[Piece]) -> None:
        if pieces:
            self._gap.clear()
            self._spoke = False
            self._pieces.extend(pieces)

    def read_call(self, call: CallReader) -> bool:
        """Reads on in the call; says whether it is over: done, bad, or cut off by the end of the text."""
        self._written.append(self.skip(call.push(self.rest, 0)))
        ended = call.done or call.bad
        if self.final and not ended:
            call.cut()
        if call.pieces:
            self.emit(call.pieces)
            call.pieces.clear()
        if not (ended or self.final):
            return False
        self.calls = call.number + call.begun
        if call.begun and not call.complete:
            written = "".join(self._written)
            self._pieces.append(CallBroken(self.calls - 1, written[: len(written) - len(call.leftover())]))
        return True

    def open_call(self, opening: str) -> None:
        """A call is about to be read, after its `opening`."""
        self._written = [opening]

    def _flush_gap(self) -> None:
        if self._gap:
            self._pieces.append(Text(self._gap.take()))

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def chunks(text: str) -> list[str]:
    return [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]


def first_characters(tags: Sequence[str]) -> re.Pattern[str]:
    """Finds where one of `tags` might begin. Text without a match holds no tag, and no beginning of one."""
    return re.compile("[" + re.escape("".join(sorted({tag[0] for tag in tags}))) + "]" if tags else r"(?!)")


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that is a true beginning of `tag`."""
    if tag[0] not in text[1 - len(tag) :]:
        return 0
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
