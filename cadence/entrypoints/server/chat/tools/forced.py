"""Calls that a model is held to, as structural tags: https://xgrammar.mlc.ai/docs names their parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cadence.entrypoints.server.chat.tools.base import Tools
from cadence.entrypoints.server.chat.tools.call_form import NAME, NUMBER, CallForm
from cadence.entrypoints.server.chat.tools.format import ToolFormat

Part = dict[str, Any]  # of a structural tag

MAX_SPACE = 8  # characters of white space in a row, between the tokens of JSON: some models would never stop
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_ARGUMENTS = {"type": "object"}


def forced_calls(form: CallForm, tools: Tools, several: bool, strict_only: bool = False) -> Part:
    """Nothing but calls: one, or at least one. `strict_only`: of tools that are not strict, only the names count."""
    calls = {
        "type": "tags_with_separator",
        "tags": [_tag(form, tool["function"], strict_only) for tool in tools],
        "separator": form.between,
        "at_least_one": True,
        "stop_after_first": not several,
    }
    return sequence([const(form.open), calls, const(form.close)])


def triggered_calls(format: ToolFormat, form: CallForm, tools: Tools, several: bool) -> Part:
    """Free text, in which what begins a call has to go on as one."""
    if form.open:
        block = forced_calls(form, tools, several, strict_only=True)
        inside = [part for part in block["elements"] if part["type"] != "const_string"]
        tags = [{"type": "tag", "begin": form.open, "content": inside[0], "end": form.close}]
    else:
        tags = [_tag(form, tool["function"], strict_only=True) for tool in tools]
    trigger = next((mark for mark in format.open if form.start.startswith(mark)), form.start)
    return {"type": "triggered_tags", "triggers": [trigger], "tags": tags, "stop_after_first": not several}


def const(text: str) -> Part:
    return {"type": "const_string", "value": text}


def sequence(parts: Sequence[Part]) -> Part:
    """Without texts that are empty."""
    return {"type": "sequence", "elements": [part for part in parts if part != const("")]}


def _tag(form: CallForm, function: Mapping[str, Any], strict_only: bool) -> Part:
    begin, numbered, rest = form.begin.replace(NAME, json.dumps(function["name"])[1:-1]).partition(NUMBER)
    arguments = _arguments(function, strict_only)
    content = sequence([{"type": "regex", "pattern": "[0-9]"}, const(rest), arguments]) if numbered else arguments
    return {"type": "tag", "begin": begin, "content": content, "end": form.end}


def _arguments(function: Mapping[str, Any], strict_only: bool) -> Part:
    """The title tells which function a schema is of, should it be a bad one."""
    schema = function.get("parameters") or _NO_ARGUMENTS
    if strict_only and not function.get("strict"):
        schema = _ANY_ARGUMENTS
    titled = {**schema, "title": function["name"]}
    return {"type": "json_schema", "json_schema": titled, "max_whitespace_cnt": MAX_SPACE}
