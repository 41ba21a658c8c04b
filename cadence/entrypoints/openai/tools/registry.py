"""The parsers by name."""

from __future__ import annotations

from collections.abc import Callable

from cadence.core.errors import ConfigError
from cadence.entrypoints.openai.tools.base import NullToolParser, ToolParser, Tools
from cadence.entrypoints.openai.tools.hermes import HermesParser
from cadence.entrypoints.openai.tools.llama3_json import Llama3JsonParser
from cadence.entrypoints.openai.tools.mistral import MistralParser
from cadence.entrypoints.openai.tools.pythonic import PythonicParser
from cadence.entrypoints.openai.tools.qwen3_coder import Qwen3CoderParser

PARSERS: dict[str, Callable[[Tools], ToolParser]] = {
    "hermes": lambda tools: HermesParser(),
    "llama3_json": lambda tools: Llama3JsonParser(),
    "mistral": lambda tools: MistralParser(),
    "pythonic": lambda tools: PythonicParser(),
    "qwen": lambda tools: HermesParser(),
    "qwen3_coder": Qwen3CoderParser,
}


def make(name: str, tools: Tools) -> ToolParser:
    if not name:
        return NullToolParser()
    if name not in PARSERS:
        raise ConfigError(
            f"tool_call_parser must be one of {', '.join(sorted(PARSERS))}; got {name!r}.", "tool_call_parser"
        )
    return PARSERS[name](tools)
