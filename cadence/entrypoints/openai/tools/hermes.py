"""<tool_call>{"name": …, "arguments": {…}}</tool_call>, as Hermes, Qwen 2.5 and Qwen 3 write it."""

from __future__ import annotations

from cadence.entrypoints.openai.tools.call_object import CallObject
from cadence.entrypoints.openai.tools.machine import Machine

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(Machine):
    def __init__(self) -> None:
        super().__init__(self._outside)
        self._held = ""  # the tag and what followed it, until the call begins
        self._call = CallObject(0)

    def _outside(self) -> bool:
        at, tag = self.find(OPEN)
        self.say(self.skip(at))
        if not tag:
            return False
        self._held = self.skip(len(tag))
        self.state = self._opened
        return True

    def _opened(self) -> bool:
        """Behind the opening tag, or behind a call: an object, or the closing tag."""
        self._held += self.skip_space()
        if self.rest.startswith("{"):
            self._call = CallObject(self.calls)
            self.state = self._inside
            return True
        if self.could_be(CLOSE):
            return False
        if self.rest.startswith(CLOSE) and not self._held.startswith(OPEN):
            self.skip(len(CLOSE))
            self._held = ""
        self._say_held("")
        return True

    def _inside(self) -> bool:
        over = self.read_call(self._call)
        if over and self._call.started:
            self._held = self._call.leftover() if self._call.bad else ""
            self.state = self._opened
            if self._held.strip():
                self._say_held("")
        elif over:
            self._say_held(self._call.leftover())
        return over

    def _say_held(self, more: str) -> None:
        self.say(self._held + more)
        self._held = ""
        self.state = self._outside
