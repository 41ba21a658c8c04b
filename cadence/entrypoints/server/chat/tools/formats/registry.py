"""The built-in formats by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.tools.base import NullToolParser, ToolParser, Tools
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats import in_json, in_tags, other
from cadence.entrypoints.server.chat.tools.schema import Schemas
from cadence.entrypoints.server.chat.tools.stream import ToolStream

ROWS = (*in_json.FORMATS, *in_tags.FORMATS, *other.FORMATS)
FORMATS: Mapping[str, ToolFormat] = MappingProxyType({name: row for row in ROWS for name in row.names})


def tool_format(name: str, formats: Mapping[str, ToolFormat] = FORMATS) -> ToolFormat:
    if name not in formats:
        names = ", ".join(sorted(formats))
        raise ConfigError(f"tool_call_parser must be one of auto, {names}; got {name!r}.", "tool_call_parser")
    return formats[name]


def tool_parser(format: ToolFormat | None, schemas: Schemas) -> ToolParser:
    """None = all text is text."""
    return NullToolParser() if format is None else ToolStream(format, schemas)


def make_tool_parser(name: str, tools: Tools) -> ToolParser:
    """Of a built-in format; "" = none."""
    return tool_parser(tool_format(name) if name else None, Schemas(tools))
