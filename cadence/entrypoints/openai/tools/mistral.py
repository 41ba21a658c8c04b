"""[TOOL_CALLS][{"name": …, "arguments": {…}}, …], and [TOOL_CALLS]name{…} or [TOOL_CALLS]name[ARGS]{…}."""

from __future__ import annotations

import re

from cadence.entrypoints.openai.tools.arguments import ArgumentsStream
from cadence.entrypoints.openai.tools.call_object import CallObject
from cadence.entrypoints.openai.tools.machine import Machine

TAG = "[TOOL_CALLS]"
_HEADER_RUN = re.compile(r"[\w.:/\-\[\]\s]{0,200}")
_HEADER = re.compile(r"([\w.:/-]+)\s*(?:\[CALL_ID\][\w-]*\s*)?(?:\[ARGS\]\s*)?")


class MistralParser(Machine):
    def __init__(self) -> None:
        super().__init__(self._outside)
        self._held = ""  # the tag and what followed it, until a call begins
        self._call: CallObject | ArgumentsStream = CallObject(0)
        self._in_list = False

    def _outside(self) -> bool:
        at, tag = self.find(TAG)
        self.say(self.skip(at))
        if not tag:
            return False
        self._held = self.skip(len(tag))
        self.state = self._tagged
        return True

    def _tagged(self) -> bool:
        self._held += self.skip_space()
        if self.could_be("["):
            return False
        self._in_list = self.rest.startswith("[")
        if self._in_list:
            self._held += self.skip(1)
            self.state = self._item
        elif self.rest.startswith("{"):
            self._begin(CallObject(self.calls))
        else:
            self.state = self._named
        return True

    def _named(self) -> bool:
        run = _HEADER_RUN.match(self.rest)
        end = run.end() if run else 0
        if end == len(self.rest) and not self.final:
            return False
        header = _HEADER.fullmatch(self.rest, 0, end)
        if header and self.rest.startswith("{", end):
            self._held += self.skip(end)
            self._begin(ArgumentsStream(self.calls, header.group(1)))
        else:
            self._say_held("")
        return True

    def _item(self) -> bool:
        """In the list: an object, or its end."""
        between = len(self.rest) - len(self.rest.lstrip(", \t\r\n"))
        self._held += self.skip(between)
        if self.could_be("{"):
            return False
        if self.rest.startswith("{"):
            self._begin(CallObject(self.calls))
        elif self.rest.startswith("]") and TAG not in self._held:
            self._held = ""
            self.skip(1)
            self.state = self._outside
        else:
            self._say_held("")
        return True

    def _begin(self, call: CallObject | ArgumentsStream) -> None:
        self._call = call
        self.state = self._inside

    def _inside(self) -> bool:
        over = self.read_call(self._call)
        if over and self._call.started and not self._call.bad:
            self._held = ""
            self.state = self._item if self._in_list and self._call.done else self._outside
        elif over:
            self._held = "" if self._call.started else self._held
            self._say_held(self._call.leftover())
        return over

    def _say_held(self, more: str) -> None:
        self.say(self._held + more)
        self._held = ""
        self.state = self._outside
