"""How the arguments of a call are written when a model is held to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cadence.entrypoints.server.chat.tools.parameters import Parameter, UnwritableError, parameters_of
from cadence.entrypoints.server.chat.tools.parts import Part, const, joined, json_value, optional, sequence
from cadence.entrypoints.server.chat.tools.schema import STRING
from cadence.entrypoints.server.chat.tools.schema_budget import SchemaBudget
from cadence.entrypoints.server.chat.tools.text_values import TextValues

KEY, KIND, IS_STRING = "{key}", "{kind}", "{is_string}"
Function = Mapping[str, Any]  # OpenAI's shape: name, parameters, strict
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class ArgumentsForm(Protocol):
    def arguments(self, function: Function, budget: SchemaBudget) -> Part:
        """That its schema allows. Raises UnwritableError where they cannot be written so that it is kept."""
        ...

    def any_arguments(self) -> Part:
        """Whatever the model writes, up to the end of the call."""
        ...


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """One object."""

    def arguments(self, function: Function, budget: SchemaBudget) -> Part:
        """The title tells which function a schema is of, should it be a bad one."""
        return json_value({**(function.get("parameters") or _NO_ARGUMENTS), "title": function["name"]})

    def any_arguments(self) -> Part:
        return json_value({"type": "object"})


@dataclass(frozen=True, slots=True)
class TagArguments:
    """One parameter after the other, each between marks. KEY in `open` is its name, KIND its type, IS_STRING whether
    it is written as it is."""

    open: str
    values: TextValues
    between: str = ""  # parameters
    after: str = ""  # each parameter; KEY in it is its name
    keys: re.Pattern[str] = re.compile(r"[^\s<>\"'=]+")

    def arguments(self, function: Function, budget: SchemaBudget) -> Part:
        members = [(self._member(one, budget), one.required) for one in parameters_of(function, budget)]
        if self.between:
            return joined(members, self.between)
        return sequence([part if required else optional(part) for part, required in members])

    def any_arguments(self) -> Part:
        return {"type": "any_text"}

    def _member(self, parameter: Parameter, budget: SchemaBudget) -> Part:
        if not self.keys.fullmatch(parameter.name):
            raise UnwritableError(f"properties: {parameter.name}")
        kind = min(parameter.types) if len(parameter.types) == 1 else "object"
        is_string = "true" if parameter.types == STRING else "false"
        begin = self.open.replace(KIND, kind).replace(IS_STRING, is_string).replace(KEY, parameter.name)
        value, after = self.values.value(parameter, budget), const(self.after.replace(KEY, parameter.name))
        return sequence([const(begin), value, after])


JSON = JsonArguments()
