"""The formats by name."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.tools import formats_json, formats_other, formats_tags
from cadence.entrypoints.server.chat.tools.base import NullToolParser, ToolParser, Tools
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.stream import ToolStream

ROWS = (*formats_json.FORMATS, *formats_tags.FORMATS, *formats_other.FORMATS)
FORMATS: dict[str, ToolFormat] = {name: row for row in ROWS for name in row.names}


def register_tool_format(format: ToolFormat) -> None:
    """Adds a format, or puts it in the place of one of the same name."""
    FORMATS.update(dict.fromkeys(format.names, format))


def tool_format(name: str) -> ToolFormat:
    if name not in FORMATS:
        names = ", ".join(tool_parser_names())
        raise ConfigError(f"tool_call_parser must be one of auto, {names}; got {name!r}.", "tool_call_parser")
    return FORMATS[name]


def make_tool_parser(name: str, tools: Tools) -> ToolParser:
    """ "" = no parser: all text is text."""
    return ToolStream(tool_format(name), tools) if name else NullToolParser()


def tool_parser_names() -> tuple[str, ...]:
    return tuple(sorted(FORMATS))
