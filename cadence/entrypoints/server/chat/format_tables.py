"""The formats that one server may choose from: the built-in ones and those of its plugins."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, field

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.reasoning import FORMATS as REASONING_FORMATS
from cadence.entrypoints.server.chat.reasoning import think_format
from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats.registry import FORMATS as TOOL_FORMATS
from cadence.entrypoints.server.chat.tools.formats.registry import tool_format

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class FormatTables:
    """By name. A plugin adds to them before the first request; a name that is taken gets the new format."""

    tools: dict[str, ToolFormat] = field(default_factory=lambda: dict(TOOL_FORMATS))
    reasoning: dict[str, ThinkFormat] = field(default_factory=lambda: dict(REASONING_FORMATS))

    def add_tool_format(self, format: ToolFormat) -> None:
        self.tools.update(dict.fromkeys(format.names, format))

    def add_reasoning_format(self, format: ThinkFormat) -> None:
        self.reasoning.update(dict.fromkeys(format.names, format))

    def tool_format(self, name: str) -> ToolFormat:
        return tool_format(name, self.tools)

    def think_format(self, name: str) -> ThinkFormat:
        return think_format(name, self.reasoning)


def load_formats(options: ServeOptions) -> FormatTables:
    """Plugins run first. Unknown names in the options raise here: when the server starts, not at the first request."""
    tables = FormatTables()
    for option in ("tool_parser_plugin", "reasoning_parser_plugin"):
        _run_plugin(option, getattr(options, option), tables)
    if options.tool_call_parser not in ("", AUTO):
        tables.tool_format(options.tool_call_parser)
    if options.reasoning_parser not in ("", AUTO):
        tables.think_format(options.reasoning_parser)
    return tables


def _run_plugin(option: str, path: str, tables: FormatTables) -> None:
    """The file defines `register(formats)`, which adds to the tables."""
    if not path:
        return
    try:
        register = runpy.run_path(path, run_name="cadence_plugin").get("register")
        if register is None:
            raise ConfigError(f"{option}: {path} defines no function register(formats)", option)
        register(tables)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}", option) from None
    except Exception as error:
        raise ConfigError(f"{option}: {path} failed: {type(error).__name__}: {error}", option) from error
