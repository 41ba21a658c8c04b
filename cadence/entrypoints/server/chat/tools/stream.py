"""The one machine that reads every format: text, blocks of calls, and the calls in them."""

from __future__ import annotations

from cadence.entrypoints.server.chat.tools.arguments import CallReader, WholeArguments
from cadence.entrypoints.server.chat.tools.base import Piece, Text
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.held_call import HeldCall
from cadence.entrypoints.server.chat.tools.held_text import HeldText
from cadence.entrypoints.server.chat.tools.machine import Machine, first_characters
from cadence.entrypoints.server.chat.tools.schema import Schemas
from cadence.entrypoints.server.chat.tools.syntax import CallPosition, Wait

MAX_REREAD = 16  # times that a text is read on average, where calls could begin inside what was none
NOTHING: CallReader = WholeArguments(0, [])


class ToolStream(Machine):
    def __init__(self, format: ToolFormat, schemas: Schemas) -> None:
        super().__init__(self._outside)
        self._format = format
        self._schemas = schemas
        self._marks = format.marks
        self._glance = first_characters(format.marks)
        self._in_text = True  # the state is `_outside`
        self._after = (*format.close, *format.noise)
        self._opener = ""  # of the block
        self._held = HeldText()  # the opener and what followed it, until a call begins
        self._fresh = True  # no call has come in this block
        self._listed = False  # inside brackets
        self._call = NOTHING
        self._received = 0  # characters
        self._reread = 0  # characters of what was no call

    def push(self, text: str) -> list[Piece]:
        self._received += len(text)
        if self._in_text and self._spoke and not (self.rest or self._gap) and not self._glance.search(text):
            return [Text(text)]  # the path of most tokens
        return super().push(text)

    def say(self, text: str) -> None:
        if not (self._format.silent and self.calls):
            super().say(text)

    def _outside(self) -> bool:
        at, tag = self.find(*self._marks)
        self.say(self.skip(at))
        if not tag:
            return False
        self._opener = tag if tag in self._format.open else ""
        self._hold(self.skip(len(self._opener)))
        self._fresh, self._listed = True, False
        self._in_text = False
        self.state = self._inside
        return True

    def _inside(self) -> bool:
        """Where a call may begin, or the block may end."""
        self._held.add(self.skip_all(self._between))
        if self._fresh and not self._listed and self._format.listed != "no":
            if not self.rest:
                return self._stop()
            if self.rest[0] == "[":
                self._held.add(self.skip(1))
                self._listed = True
                return True
            if self._format.listed == "must":
                return self._no_call()
        begun = self._format.syntax.begin(CallPosition(self.rest, self.final, self.calls, self._schemas))
        if isinstance(begun, Wait):
            return False
        if begun is None:
            return self._no_call()
        self._held.add(self.skip(begun.length))
        self.open_call(self._held.joined())
        self._call = begun.call
        self.state = self._reading
        return self._reading()

    @property
    def _between(self) -> str:
        return self._format.between + "," if self._listed else self._format.between

    def _stop(self) -> bool:
        """Nothing more to read: waits, or gives up at the end of the text."""
        return self._no_call() if self.final else False

    def _no_call(self) -> bool:
        if self._listed and not self._fresh and self.rest.startswith("]"):
            self.skip(1)
            self._held.clear()
            self._listed = False
            return True
        if self.could_be(*self._after):
            return False
        tag = next((tag for tag in self._after if self.rest.startswith(tag)), "")
        if tag and not (self._fresh and tag in self._format.close):
            noise = self.skip(len(tag))
            if self._fresh:
                self._held.add(noise)
            else:
                self._held.clear()
            if tag in self._format.close:
                self._leave()
            return True
        self._give_up("")
        return True

    def _reading(self) -> bool:
        over = self.read_call(self._call)
        if not over:
            return False
        call = self._call
        if call.begun and call.complete:
            left = call.leftover() if call.bad else ""
            self._hold(left)
            self._fresh = False
            self.state = self._inside
            if left.strip():
                self._give_up("")
        elif call.begun:
            self._held.clear()
            self._fresh = False
            self.say(call.leftover())
            self._leave()
        else:
            self._give_up_call(call.leftover(), isinstance(call, HeldCall))
        return True

    def _give_up_call(self, read: str, again: bool) -> None:
        """again: a call may begin inside what was read"""
        self._reread += len(read)
        if self._reread > MAX_REREAD * (self._received - len(self.rest) - self._num_later):
            self._drop(self._held.take() + read)
        elif again:
            self.rest = read + self.rest
            self._give_up("")
        else:
            self._give_up(read)

    def _give_up(self, more: str) -> None:
        """No call begins here: what was held is text. Without an opener a call may begin inside what was none."""
        text = self._held.take() + more
        if self._fresh and not self._opener:
            self.rest = text + self.rest
            text = self.skip(1)
        self._drop(text)

    def _drop(self, text: str) -> None:
        """It is text, not a call."""
        if self._fresh:
            self.say(text)
        else:
            self.separate(text)
        self._leave()

    def _hold(self, text: str) -> None:
        """In place of what was held."""
        self._held.clear()
        self._held.add(text)

    def _leave(self) -> None:
        self._in_text = True
        self.state = self._outside
