"""The formats a server reads its model's answers by, chosen once at the start."""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.chat.answer_parser import AnswerParser, CallsFirst, ThoughtsFirst
from cadence.entrypoints.server.chat.format_detection import detect_reasoning, detect_tools
from cadence.entrypoints.server.chat.format_tables import AUTO, FormatTables
from cadence.entrypoints.server.chat.reasoning import reasoning_parser
from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.entrypoints.server.chat.tools.base import Tools, WholeCalls
from cadence.entrypoints.server.chat.tools.forced import can_force
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats.in_json import JSON_CALLS
from cadence.entrypoints.server.chat.tools.formats.registry import tool_parser
from cadence.entrypoints.server.chat.tools.schema import Schemas

FALLBACK = "hermes"
CHANNELS = {  # tool formats whose calls stand among channels, which are not for the reader -> what reads the channels
    "openai": "openai_gptoss",
    "gpt_oss": "openai_gptoss",
    "inkling": "inkling",
    "kimi_k3": "kimi_k3",
    "muse_glimmer": "muse_glimmer",
}
_MISTRAL_ID = string.ascii_letters + string.digits
logger = logging.getLogger("cadence.server")


@dataclass(frozen=True, slots=True)
class CallReading:
    """How the calls in an answer are read: the same for all choices of a request."""

    format: ToolFormat | None  # None = nothing is a call
    schemas: Schemas


NO_CALLS = CallReading(None, Schemas(()))


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """None = nothing is told apart. The flags say whether a format's markers are special tokens of this model, which
    must then not be skipped when its text is decoded."""

    tools: ToolFormat | None = None
    reasoning: ThinkFormat | None = None
    special_tools: bool = False
    special_reasoning: bool = False

    @property
    def thinks(self) -> bool:
        return self.reasoning is not None and bool(self.reasoning.open)

    def demanded(self, tools: Tools) -> ToolFormat:
        """How calls are written that a request demands: as JSON where the model's own format cannot keep a schema."""
        return self.tools if self.tools is not None and can_force(self.tools.form, tools) else JSON_CALLS

    def reading(self, tools: Tools, demanded: bool) -> CallReading:
        """How calls of these tools are read. Walks over their schemas: not for an event loop."""
        return CallReading(self.demanded(tools) if demanded else self.tools, Schemas(tools))

    def parser(self, reading: CallReading, prompt: str, stream: bool) -> AnswerParser:
        """For an answer to `prompt`."""
        format = reading.format
        calls = tool_parser(format, reading.schemas)
        thoughts = reasoning_parser(self.reasoning, prompt)
        kind = CallsFirst if format is not None and format.ends_thinking else ThoughtsFirst
        return kind(thoughts, calls if stream else WholeCalls(calls))

    def needs_special_tokens(self, tools: bool) -> bool:
        return self.special_reasoning or (tools and self.special_tools)

    def new_id(self, seed: str) -> Callable[[], str]:
        """What makes ids for calls that have none: with a seed always the same, one after the other."""
        write = _mistral_id if self.tools is not None and self.tools.random_ids == "mistral" else _call_id
        seed = seed or secrets.token_hex(16)
        numbers = itertools.count()
        return lambda: write(hashlib.sha256(f"{seed} {next(numbers)}".encode()).digest())


def _call_id(digest: bytes) -> str:
    return f"call_{digest[:12].hex()}"


def _mistral_id(digest: bytes) -> str:
    """Mistral's templates take ids of nine letters and digits alone."""
    return "".join(_MISTRAL_ID[byte % len(_MISTRAL_ID)] for byte in digest[:9])


def choose_formats(
    options: ServeOptions, tables: FormatTables, model_name: str, templates: Sequence[str], special: Collection[str]
) -> AnswerFormats:
    """`templates`: the chat templates that may be used; `special`: the texts of the model's special tokens."""
    text = "\n".join(templates)
    tools = _tool_format(options, text, model_name)
    reasoning = options.reasoning_parser or CHANNELS.get(tools, "")
    if reasoning == AUTO or (not reasoning and _writes_channels(text)):
        reasoning = _chosen("reasoning_parser", detect_reasoning(text), "")
    calls = tables.tool_format(tools) if tools else None
    thoughts = tables.think_format(reasoning) if reasoning else None
    return AnswerFormats(
        calls,
        thoughts,
        calls is not None and _any_special(calls.all_marks, special),
        thoughts is not None and _any_special(thoughts.marks, special),
    )


def _tool_format(options: ServeOptions, template: str, model_name: str) -> str:
    """ "" = none was named, and none can be detected: requests that need one are told so."""
    named = options.tool_call_parser
    if named not in ("", AUTO):
        return named
    found = detect_tools(template, model_name)
    if found is None and not named and not options.enable_auto_tool_choice:
        return ""
    return _chosen("tool_call_parser", found, FALLBACK)


def _writes_channels(template: str) -> bool:
    """Whether an answer is unreadable unless its channels are told apart."""
    found = detect_reasoning(template)
    return found is not None and found[0] in CHANNELS.values()


def _chosen(option: str, found: tuple[str, str] | None, fallback: str) -> str:
    if found is None:
        said = f"{fallback} is assumed" if fallback else "there is none"
        logger.warning("%s=auto: the chat template shows no known format; %s", option, said)
        return fallback
    name, reason = found
    logger.warning("%s=auto: %s, because %s", option, name, reason)
    return name


def _any_special(marks: Sequence[str], special: Collection[str]) -> bool:
    return any(token in mark for mark in marks for token in special)
