"""{"name": …, "parameters": {…}}, as Llama 3 writes it: alone, behind <|python_tag|>, several with ; between them."""

from __future__ import annotations

from cadence.entrypoints.openai.tools.call_object import CallObject
from cadence.entrypoints.openai.tools.machine import Machine

TAG = "<|python_tag|>"


class Llama3JsonParser(Machine):
    """Any object that begins like a call may be one: it is text again at its first key that a call does not have."""

    def __init__(self) -> None:
        super().__init__(self._outside)
        self._tag = ""  # the tag and the white space behind it, until the call begins
        self._call = CallObject(0)

    def _outside(self) -> bool:
        at, tag = self.find(TAG, "{")
        self.say(self.skip(at))
        if not tag:
            return False
        self._tag = self.skip(len(tag)) if tag == TAG else ""
        self.state = self._tagged
        return True

    def _tagged(self) -> bool:
        self._tag += self.skip_space()
        if self.could_be("{"):
            return False
        if self.rest.startswith("{"):
            self._call = CallObject(self.calls, arguments_required=True)
            self.state = self._inside
        else:
            self.say(self._tag)
            self.state = self._outside
        return True

    def _inside(self) -> bool:
        over = self.read_call(self._call)
        if not over:
            return False
        left = self._call.leftover()
        if self._call.started:
            self.say(left if self._call.bad else "")
            self.state = self._behind
        else:
            self.say(self._tag + left[:1])  # a call may begin inside what was none
            self.rest = left[1:] + self.rest
            self.state = self._outside
        return True

    def _behind(self) -> bool:
        between = len(self.rest) - len(self.rest.lstrip("; \t\r\n"))
        self.separate(self.skip(between))
        if self.rest or self.final:
            self.state = self._outside
        return bool(self.rest)
