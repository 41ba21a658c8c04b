"""<tool_call><function=name><parameter=key>value</parameter></function></tool_call>, as Qwen 3 Coder writes it.

A parameter is sent when it is complete: what its text means depends on the type the tool gives it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cadence.entrypoints.openai.tools.arguments import json_text
from cadence.entrypoints.openai.tools.base import CallArguments, CallStart, Tools
from cadence.entrypoints.openai.tools.machine import Machine

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class Qwen3CoderParser(Machine):
    def __init__(self, tools: Tools) -> None:
        super().__init__(self._outside)
        self._schemas = {name: properties for name, properties in map(_properties, tools) if name}
        self._held = ""  # read and not sent
        self._name = ""
        self._keys: set[str] = set()

    def _outside(self) -> bool:
        at, tag = self.find(OPEN, FUNCTION)
        self.say(self.skip(at))
        if not tag:
            return False
        self._held = self.skip(len(OPEN)) if tag == OPEN else ""
        self.state = self._opened
        return True

    def _opened(self) -> bool:
        self._held += self.skip_space()
        if self.could_be(FUNCTION):
            return False
        end = self.rest.find(">")
        if self.rest.startswith(FUNCTION) and end < 0 and not self.final:
            return False
        self._name = self.rest[len(FUNCTION) : end].strip() if self.rest.startswith(FUNCTION) else ""
        if self._name.isprintable() and self._name and "<" not in self._name and end > 0:
            self._held += self.skip(end + 1)
            self._keys = set()
            self.state = self._body
        else:
            self._held += self.skip(1) if self.rest.startswith(FUNCTION) else ""
            self._say_held()
        return True

    def _body(self) -> bool:
        self._held += self.skip_space()
        if self.could_be(PARAMETER, END_FUNCTION):
            return False
        if self.rest.startswith(END_FUNCTION):
            self.skip(len(END_FUNCTION))
            self._send("}" if self._keys else "{}")
            self.state = self._closing
            return True
        end = self.rest.find(END_PARAMETER)
        if self.rest.startswith(PARAMETER) and end < 0 and not self.final:
            return False
        key, bracket, value = self.rest[len(PARAMETER) : max(end, 0)].partition(">")
        if self.rest.startswith(PARAMETER) and bracket and key not in self._keys and key.isprintable():
            self.skip(end + len(END_PARAMETER))
            opening = ", " if self._keys else "{"
            self._send(f"{opening}{json_text(key)}: {self._value(key, value)}")
            self._keys.add(key)
        else:
            self._say_held()
        return True

    def _closing(self) -> bool:
        self._held += self.skip_space()
        if self.could_be(CLOSE):
            return False
        if self.rest.startswith(CLOSE):
            self.skip(len(CLOSE))
            self._held = ""
        self._say_held()
        return True

    def _send(self, arguments: str) -> None:
        call = self.calls if not self._keys else self.calls - 1
        start = [] if self._keys else [CallStart(call, self._name)]
        self.emit([*start, CallArguments(call, arguments)])
        self.calls = call + 1
        self._held = ""

    def _say_held(self) -> None:
        self.say(self._held)
        self._held = ""
        self.state = self._outside

    def _value(self, key: str, text: str) -> str:
        text = text.removeprefix("\n").removesuffix("\n")
        schema = self._schemas.get(self._name, {}).get(key, {"type": "string"})
        if not isinstance(schema, Mapping) or schema.get("type") == "string":
            return json_text(text)
        try:
            word = text.strip()
            return json_text(_PYTHON_WORDS[word] if word in _PYTHON_WORDS else json.loads(word))
        except (ValueError, RecursionError):
            return json_text(text)


def _properties(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return "", {}
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return str(function.get("name", "")), properties if isinstance(properties, Mapping) else {}
