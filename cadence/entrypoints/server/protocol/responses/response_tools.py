"""The tools of /v1/responses: offered to the model as functions, and each call led back to the tool that was meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.chat import CHOICES, MAX_NAME, MAX_TOOLS, check_name
from cadence.entrypoints.server.protocol.common import check_count

DEFAULT_NAMESPACE = "functions"  # where its tools have no other, their names stand alone
INPUT = "input"  # the one argument of a custom tool's function

_NO_SERVER_TOOLS = "this server runs no tools; the model is not told of it"
_NO_GRAMMAR = "the model reads the format, but nothing holds it to it"
_NOT_DEFERRED = "the model is told of all tools at once"


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """What a call's item says of its tool."""

    kind: str  # of the item: function_call or custom_tool_call
    name: str
    namespace: str = ""


class ResponseTools:
    def __init__(self, tools: Sequence[Mapping[str, Any]], ignored: Ignored) -> None:
        self.chat: list[dict[str, Any]] = []  # in the shape of chat completions, which is the one templates know
        self._origins: dict[str, ToolOrigin] = {}  # by the function's name
        self._ignored = ignored
        for number, tool in enumerate(tools):
            self._read(tool, f"tools[{number}]")

    def add_from(self, item: Mapping[str, Any], where: str) -> None:
        """Tools that an item of the input brings along."""
        self._read_list(item.get("tools"), f"{where}.tools")

    def origin(self, name: str) -> ToolOrigin:
        """Of the function that the model calls. One that was not offered keeps its own name."""
        return self._origins.get(name, ToolOrigin("function_call", name))

    def choose(self, chosen: object) -> str:
        """none, auto, required, or the name of one of the functions."""
        if isinstance(chosen, dict):
            return self._allow(chosen) if chosen.get("type") == "allowed_tools" else self._named(chosen)
        if chosen is not None and chosen not in CHOICES:
            raise InvalidRequestError("tool_choice must be none, auto, required or name a function", "tool_choice")
        if chosen == "required" and not self.chat:
            raise InvalidRequestError("tool_choice is required, but there are no tools", "tool_choice")
        return str(chosen or "auto") if self.chat else "none"

    def _read(self, tool: Mapping[str, Any], where: str, namespace: str = "") -> None:
        kind = tool.get("type")
        if kind == "function":
            self._function(tool, where, namespace)
        elif kind == "custom":
            self._custom(tool, where, namespace)
        elif kind == "namespace" and not namespace:
            self._namespace(tool, where)
        elif isinstance(kind, str) and kind:
            self._ignored.add(where, _NO_SERVER_TOOLS)
        else:
            raise InvalidRequestError(f"{where}.type must be a string", f"{where}.type")

    def _namespace(self, tool: Mapping[str, Any], where: str) -> None:
        check_name(tool.get("name"), f"{where}.name")
        self._read_list(tool.get("tools"), f"{where}.tools", tool["name"])

    def _read_list(self, tools: object, where: str, namespace: str = "") -> None:
        if not isinstance(tools, list):
            raise InvalidRequestError(f"{where} must be a list of tools", where)
        check_count(tools, MAX_TOOLS, where)
        for number, one in enumerate(tools):
            if not isinstance(one, dict):
                raise InvalidRequestError(f"{where}[{number}] must be an object with a type", f"{where}[{number}]")
            self._read(one, f"{where}[{number}]", namespace)

    def _function(self, tool: Mapping[str, Any], where: str, namespace: str) -> None:
        if not isinstance(tool.get("parameters") or {}, dict):
            raise InvalidRequestError(f"{where}.parameters must be a JSON schema", f"{where}.parameters")
        kept = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
        self._offer("function_call", tool, where, namespace, kept)

    def _custom(self, tool: Mapping[str, Any], where: str, namespace: str) -> None:
        """A tool that takes plain text, maybe of a grammar: a function with one string."""
        text = {"type": "string", "description": "The text that the tool gets, as it is."}
        grammar = tool.get("format")
        if isinstance(grammar, dict) and grammar.get("type") not in (None, "text"):
            definition = grammar.get("definition")
            if isinstance(definition, str):
                text["description"] = f"The text that the tool gets. It must match this grammar:\n{definition}"
            self._ignored.add(f"{where}.format", _NO_GRAMMAR)
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
        kept = {"parameters": parameters}
        if tool.get("description") is not None:
            kept["description"] = tool["description"]
        self._offer("custom_tool_call", tool, where, namespace, kept)

    def _offer(
        self, kind: str, tool: Mapping[str, Any], where: str, namespace: str, function: Mapping[str, Any]
    ) -> None:
        check_name(tool.get("name"), f"{where}.name")
        if not isinstance(tool.get("description") or "", str):
            raise InvalidRequestError(f"{where}.description must be a string", f"{where}.description")
        if tool.get("defer_loading"):
            self._ignored.add(f"{where}.defer_loading", _NOT_DEFERRED)
        origin = ToolOrigin(kind, tool["name"], namespace)
        name = flat_name(origin.name, namespace)
        if self._origins.setdefault(name, origin) != origin:
            raise InvalidRequestError(f"{where}.name is that of another tool: {name[:MAX_NAME]!r}", f"{where}.name")
        self.chat.append({"type": "function", "function": {"name": name, **function}})

    def _named(self, chosen: Mapping[str, Any]) -> str:
        kind, name, namespace = chosen.get("type"), chosen.get("name"), chosen.get("namespace") or ""
        if kind not in ("function", "custom") or not isinstance(name, str) or not isinstance(namespace, str):
            raise InvalidRequestError('tool_choice must look like {"type": "function", "name": "..."}', "tool_choice")
        flat = flat_name(name, namespace)
        if flat not in self._origins:
            raise InvalidRequestError(f"tool_choice names {flat[:MAX_NAME]!r}, which is not in tools", "tool_choice")
        return flat

    def _allow(self, chosen: Mapping[str, Any]) -> str:
        """The model is told of the tools that are allowed, and of no other."""
        mode, allowed = chosen.get("mode", "auto"), chosen.get("tools")
        if mode not in ("auto", "required") or not isinstance(allowed, list):
            raise InvalidRequestError("tool_choice.mode must be auto or required, with a list of tools", "tool_choice")
        names = {self._named(tool) for tool in allowed if isinstance(tool, dict)}
        self.chat = [tool for tool in self.chat if tool["function"]["name"] in names]
        return self.choose(mode)


def flat_name(name: str, namespace: str) -> str:
    """The one name under which the model knows a tool of a namespace."""
    if not namespace or namespace == DEFAULT_NAMESPACE:
        return name
    joint = "" if namespace.endswith("_") or name.startswith("_") else "__"
    return f"{namespace}{joint}{name}"


def custom_arguments(text: str) -> str:
    """The arguments of a custom tool's function."""
    return msgspec.json.encode({INPUT: text}).decode()


def custom_input(arguments: str) -> str:
    """The text that the model wrote for a custom tool: the one string among its arguments, else all it wrote."""
    try:
        content = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    values = list(content.values()) if isinstance(content, dict) else []
    if isinstance(content, dict) and isinstance(content.get(INPUT), str):
        values = [content[INPUT]]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else arguments
