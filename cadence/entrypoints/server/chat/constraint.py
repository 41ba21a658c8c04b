"""What the answer of a chat must be: what its request says of it, the calls it demands, and free thoughts before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.grammar import NO_DEFAULTS, GrammarKind, GrammarSpec
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.chat.formats import AnswerFormats
from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.entrypoints.server.chat.tools.call_form import CallForm
from cadence.entrypoints.server.chat.tools.forced import forced_calls, triggered_calls
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.parts import Part, const, either, optional, sequence, written_size

MAX_TAG = 1 << 21  # characters of all that an answer is held to
_ANY_TEXT = {"type": "any_text"}
_GAP = {"type": "regex", "pattern": "[ \\n]{0,2}"}  # white space after thoughts


def constraint_of(job: ChatJob, formats: AnswerFormats, before: str) -> StructuredOutputsParams | None:
    """None = the model says what it likes. `before`: the text that the answer goes on from."""
    asked = job.params.structured_outputs
    spec = asked.spec(NO_DEFAULTS) if asked is not None else None
    calls = bool(job.tools) and job.tool_choice != "none"
    demanded = formats.demanded(job.tools) if calls and job.tool_choice != "auto" else None
    answer, source = _answer(job, formats, spec, demanded)
    if answer is None:
        return asked
    if answer["type"] != "triggered_tags":  # in thoughts, calls are calls too
        answer = after_thoughts(answer, formats.reasoning, before, _openings(demanded or formats.tools, calls))
    if (size := written_size(answer)) > MAX_TAG:
        raise InvalidRequestError(f"{source}: to be held to, it takes {size} characters, of at most {MAX_TAG}", source)
    tag = {"type": "structural_tag", "format": answer}
    return StructuredOutputsParams(structural_tag=tag, source=source, backend=asked.backend if asked else None)


def _answer(
    job: ChatJob, formats: AnswerFormats, spec: GrammarSpec | None, demanded: ToolFormat | None
) -> tuple[Part | None, str]:
    """What comes after the thoughts, and the field that wants it. None where a plain constraint will do, or none."""
    if demanded is not None:
        return _demanded(job, formats, demanded), "tools"
    calls = bool(job.tools) and job.tool_choice != "none"
    if calls and (format := formats.tools) is not None and (form := format.form) is not None:
        if spec is not None:
            written = forced_calls(form, job.tools, job.parallel_calls, strict_only=True)
            said = [_message(_part(spec), formats), _calls_message(written, form, formats)]
            return {"type": "or", "elements": said}, spec.source
        if any(tool["function"].get("strict") for tool in job.tools):
            return triggered_calls(format, form, job.tools, job.parallel_calls), "tools"
    if spec is not None and formats.thinks:
        return _message(_part(spec), formats), spec.source
    return None, ""


def _demanded(job: ChatJob, formats: AnswerFormats, format: ToolFormat) -> Part:
    form = format.form
    assert form is not None
    named = job.tool_choice != "required"
    tools = [tool for tool in job.tools if not named or tool["function"]["name"] == job.tool_choice]
    calls = forced_calls(form, tools, several=job.parallel_calls and not named)
    return _calls_message(calls, form, formats)


def _calls_message(calls: Part, form: CallForm, formats: AnswerFormats) -> Part:
    return calls if form.is_message else _message(calls, formats)


def _message(answer: Part, formats: AnswerFormats) -> Part:
    """After what opens a message for the reader, where the model writes among channels."""
    format = formats.reasoning
    if format is None or not format.lead:
        return answer
    return sequence([const(format.lead), answer, *([optional(const(format.tail))] if format.tail else [])])


def _openings(format: ToolFormat | None, calls: bool) -> tuple[str, ...]:
    """What would begin a call in thoughts, and end them."""
    return format.marks if calls and format is not None and format.ends_thinking else ()


def after_thoughts(answer: Part, format: ThinkFormat | None, before: str, never: Sequence[str] = ()) -> Part:
    """The answer, after thoughts that the prompt has begun, or after thoughts or none. What is in
    `never` is not in them."""
    if format is None or not format.open:
        return answer
    close = list(format.close)
    ended = [mark for mark in dict.fromkeys((*never, *format.implied)) if mark not in close]
    free = {"type": "any_text", "excludes": ended} if ended else _ANY_TEXT
    gap = const(format.turn) if format.turn else _GAP
    if format.begun(before):
        thoughts = {"type": "tag", "begin": "", "content": free, "end": close}
        return sequence([thoughts, gap, answer])
    turn = const("" if before.rstrip().endswith(format.turn) else format.turn)
    if before.rstrip().endswith(tuple(tag.rstrip() for tag in close)):
        return sequence([turn, answer])
    space = " " if format.lead.startswith(" ") else ""
    tags = [{"type": "tag", "begin": space + tag, "content": free, "end": close} for tag in format.open]
    if format.turn:  # each message begins with it, unless the prompt has ended with it
        return either([sequence([turn, answer]), sequence([turn, either(tags), gap, answer])])
    thoughts = sequence([either(tags), gap])
    return sequence([optional(thoughts), answer])


def _part(spec: GrammarSpec) -> Part:
    """A constraint as a part of a structural tag."""
    if spec.whitespace_pattern or spec.kind is GrammarKind.LARK:
        message = f"{spec.source} cannot stand beside thoughts or calls: no pattern for white space can, nor Lark"
        raise InvalidRequestError(message, spec.source)
    match spec.kind:
        case GrammarKind.JSON_OBJECT:
            return _schema({"type": "object"}, spec)
        case GrammarKind.JSON_SCHEMA:
            return _schema(json.loads(spec.text), spec)
        case GrammarKind.REGEX:
            return {"type": "regex", "pattern": spec.text}
        case GrammarKind.CHOICE:
            return {"type": "or", "elements": [const(choice) for choice in json.loads(spec.text)]}
        case GrammarKind.EBNF:
            return {"type": "grammar", "grammar": spec.text}
        case _:
            return dict(json.loads(spec.text)["format"])


def _schema(schema: Any, spec: GrammarSpec) -> Part:
    part: Part = {"type": "json_schema", "json_schema": schema}
    return part if spec.any_whitespace else {**part, "max_whitespace_cnt": 1}
