"""Calls that a model is held to, as structural tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.tools.base import Tools
from cadence.entrypoints.server.chat.tools.call_form import NAME, NUMBER, CallForm
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.parameters import UnwritableError
from cadence.entrypoints.server.chat.tools.parts import Part, const, either, regex, sequence, written_size
from cadence.entrypoints.server.chat.tools.schema_budget import SchemaBudget

MAX_WRITTEN = 1 << 18  # characters that say how the calls of one tool are written


def can_force(form: CallForm | None, tools: Tools) -> bool:
    """Whether the form can keep the schemas of all of them."""
    if form is None:
        return False
    budget = SchemaBudget()
    try:
        for tool in tools:
            _written_out(form, tool["function"], budget)
    except UnwritableError:
        return False
    return True


def forced_calls(form: CallForm, tools: Tools, several: bool, strict_only: bool = False) -> Part:
    """Nothing but calls: one, or at least one. `strict_only`: of tools that are not strict, only the names count."""
    forms = [form] if form.other is None else [form, form.other]
    budget = SchemaBudget()
    return either([_block(one, tools, several and not one.once, strict_only, budget) for one in forms])


def triggered_calls(format: ToolFormat, form: CallForm, tools: Tools, several: bool) -> Part:
    """Free text, in which what begins a call has to go on as one."""
    forms = [form] if form.other is None else [form, form.other]
    several = several and not form.once
    trigger = form.trigger or next((mark for mark in format.open if form.start.startswith(mark)), form.start)
    budget = SchemaBudget()
    tags = [tag for one in forms for tag in _triggered(one, tools, several, trigger, budget)]
    triggers = [trigger] if len(trigger) > 1 else [tag["begin"] for tag in tags]  # a bracket alone is no sign of a call
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": not several}


def _block(form: CallForm, tools: Tools, several: bool, strict_only: bool, budget: SchemaBudget) -> Part:
    return sequence([const(form.open), _calls(form, tools, several, strict_only, budget), const(form.close)])


def _calls(form: CallForm, tools: Tools, several: bool, strict_only: bool, budget: SchemaBudget) -> Part:
    return {
        "type": "tags_with_separator",
        "tags": [_tag(form, tool["function"], strict_only, budget) for tool in tools],
        "separator": form.between,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def _triggered(form: CallForm, tools: Tools, several: bool, trigger: str, budget: SchemaBudget) -> list[Part]:
    if not form.open:
        return [_tag(form, tool["function"], True, budget, over=form.over) for tool in tools]
    if len(trigger) > 1 and form.open.startswith(trigger):
        inside = _calls(form, tools, several, True, budget)
        return [{"type": "tag", "begin": form.open, "content": inside, "end": form.close}]
    tags = [_tag(form, tool["function"], True, budget) for tool in tools]
    more = {"type": "star", "content": sequence([const(form.between), either(tags)])}
    return [_first(form, tag, [more] if several else []) for tag in tags]


def _first(form: CallForm, tag: Part, more: list[Part]) -> Part:
    """A block that begins with this call: what opens it alone does not tell that one comes."""
    content = sequence([tag["content"], const(tag["end"]), *more])
    return {"type": "tag", "begin": form.open + tag["begin"], "content": content, "end": form.close}


def _tag(form: CallForm, function: Mapping[str, Any], strict_only: bool, budget: SchemaBudget, over: str = "") -> Part:
    begin, numbered, rest = form.begin.replace(NAME, json.dumps(function["name"])[1:-1]).partition(NUMBER)
    free = strict_only and not function.get("strict")
    arguments = form.written.any_arguments() if free else _arguments(form, function, budget)
    if numbered:
        arguments = sequence([regex("[0-9]"), const(rest), arguments])
    return {"type": "tag", "begin": begin, "content": arguments, "end": (over if free else "") or form.end}


def _written_out(form: CallForm, function: Mapping[str, Any], budget: SchemaBudget) -> Part:
    part = form.written.arguments(function, budget)
    if (size := written_size(part)) > MAX_WRITTEN:
        raise UnwritableError(f"a schema that takes {size} characters to write out, of at most {MAX_WRITTEN}")
    return part


def _arguments(form: CallForm, function: Mapping[str, Any], budget: SchemaBudget) -> Part:
    try:
        return _written_out(form, function, budget)
    except UnwritableError as error:
        message = f"tools: {function['name']!r} is strict, and calls of this model cannot be held to {error}"
        raise InvalidRequestError(message, "tools") from None
