"""Calls with arguments of every kind, in every format: whatever a random model may write, the format's own parser reads
as calls whose arguments are valid, however the text is cut, after thoughts, and by either backend."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cadence.core.errors import InvalidRequestError
from cadence.core.grammar import NO_DEFAULTS, GrammarBackend, GrammarSpec
from cadence.entrypoints.server.chat.constraint import constraint_of
from cadence.entrypoints.server.chat.formats import CHANNELS, AnswerFormats
from cadence.entrypoints.server.chat.reasoning import Thought, think_format
from cadence.entrypoints.server.chat.tools.argument_forms import JSON, TagArguments
from cadence.entrypoints.server.chat.tools.base import CallArguments, CallBroken, CallStart, Text
from cadence.entrypoints.server.chat.tools.call_form import NAME, NUMBER
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats.in_json import JSON_CALLS
from cadence.entrypoints.server.chat.tools.formats.registry import ROWS, tool_format
from cadence.entrypoints.server.chat.tools.parts import written_size
from cadence.structured.compiler import Backends
from tests.helpers.grammars import allowed, compiled, text_of, tiny_backends
from tests.helpers.wide import mostly_wide_rows
from tests.server.test_forced_calls import job

KINDS: dict[str, Any] = {
    "text": {"type": "string"},
    "mode": {"enum": ["fast", "slow <b>", 3]},
    "only": {"const": 7},
    "count": {"type": "integer", "minimum": 1, "maximum": 99},
    "ratio": {"type": "number"},
    "deep": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {"type": "object", "properties": {"x": {"type": "integer"}, "note": {"type": "string"}},
              "required": ["x"], "additionalProperties": False},
    "kind": {"$ref": "#/$defs/kind"},
    "path": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
}  # fmt: skip
DEFS = {"kind": {"enum": ["a", "b"]}}
LIMITED = {
    "short": {"type": "string", "minLength": 2, "maxLength": 5},
    "code": {"type": "string", "pattern": "^[A-Z]{2}(-[0-9]+)?$"},
    "names": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 3},
}
CHANNELLED = {"openai": "<|start|>assistant", "muse_glimmer": "<|start|>assistant to=self<|message|>Hm.<|eom|>"}
BACKENDS = ("auto", "llguidance")
ROW_BACKENDS = [(row, backend) for row in ROWS for backend in BACKENDS]


def kind_of(row: ToolFormat) -> tuple[object, ...]:
    """Alike for formats that are written and read by the same code."""
    assert row.form is not None
    written = "JSON" if row.form.written is JSON else type(row.form.written).__name__
    return written, row.form.once, bool(row.form.open), bool(row.form.between), row.names[0] in CHANNELS


OF_EACH_KIND = {kind_of(row): row for row in reversed(ROWS)}
ALWAYS = [
    *((row, "auto") for row in OF_EACH_KIND.values()),
    *({kind[0]: (row, "llguidance") for kind, row in OF_EACH_KIND.items()}.values()),
]
BY_BACKEND = mostly_wide_rows(ROW_BACKENDS, ALWAYS)
NAMES = [f"{row.names[0]}-{backend}" for row, backend in ROW_BACKENDS]
_CLOSING = frozenset(b'"}])>0')


def schema_of(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "$defs": DEFS}


def tool(name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


EVERY = schema_of(KINDS, ["text", "count", "tags"])
FEW = schema_of({key: KINDS[key] for key in ("maybe", "deep", "place")}, [])
LIMITS = schema_of(LIMITED, ["short", "code"])
TOOLS = [tool("do_it", EVERY), tool("few", FEW), tool("limits", LIMITS)]
SCHEMAS = {"do_it": EVERY, "few": FEW, "limits": LIMITS}


def marks_of(format: ToolFormat) -> list[str]:
    """Whole marks, as the tokens of a model often are: those that end a value above all."""
    form = format.form
    assert form is not None
    begins = form.begin.replace(NUMBER, NAME).split(NAME)
    ends = [form.written.values.end] if isinstance(form.written, TagArguments) else []
    return [mark for mark in {*format.all_marks, *begins, *ends, form.end, form.open, form.close} if len(mark) > 1]


def vocabulary_for(*marks: str) -> Backends:
    letters = [bytes([code]) for code in range(32, 127)] + [b"\n"]
    return tiny_backends([*letters, *(mark.encode() for mark in marks)])


def written(spec: GrammarSpec, backends: Backends, draws: int) -> list[str]:
    """Drawn from what is allowed, the more in a hurry the longer it gets."""
    found, pieces = compiled(spec, backends), backends.vocabulary.pieces
    texts = []
    for seed in range(draws):
        draw, matcher, tokens = random.Random(seed), found.matcher(), list[int]()
        while not matcher.finished and len(tokens) < 900:
            choice = allowed(matcher, found.vocab_size)
            assert choice, text_of(tokens, backends.vocabulary)
            stops = [token for token in choice if token in found.stop_ids]
            quick = [token for token in choice if len(pieces[token]) > 1 or set(pieces[token]) <= _CLOSING]
            hurries = draw.random() < 0.25 + len(tokens) / 600
            token = draw.choice(stops if stops and draw.random() < 0.6 else quick if quick and hurries else choice)
            assert matcher.accept(token)
            tokens.append(token)
        if matcher.finished:
            texts.append(text_of(tokens, backends.vocabulary).decode(errors="replace"))
    assert len(texts) >= draws // 2, f"only {len(texts)} of {draws} ended"
    return texts


def calls_of(text: str, formats: AnswerFormats, before: str, seed: int | None) -> list[tuple[str, Any]]:
    """`seed` of how the text is cut; None = it is shown as a whole."""
    parser, draw = formats.parser(formats.reading(TOOLS, True), before, seed is not None), random.Random(seed)
    pieces, rest = [], text
    while rest:
        size = draw.randint(1, 7)
        pieces += parser.push(rest[:size])
        rest = rest[size:]
    names, arguments = [], dict[int, str]()
    for piece in [*pieces, *parser.finish()]:
        said = isinstance(piece, CallBroken) or (isinstance(piece, Text) and piece.text.strip())
        assert not said and isinstance(piece, Text | Thought | CallStart | CallArguments), (piece, text)
        if isinstance(piece, CallStart):
            names.append(piece.name)
        elif isinstance(piece, CallArguments):
            arguments[piece.call] = arguments.get(piece.call, "") + piece.json_text
    return [(name, json.loads(arguments[number])) for number, name in enumerate(names)]


def formats_for(format: ToolFormat, thinks: bool) -> tuple[AnswerFormats, str]:
    """With the end of a prompt, after which the model thinks first, or may not."""
    name = format.names[0]
    if name in CHANNELS:
        return AnswerFormats(format, think_format(CHANNELS[name])), CHANNELLED.get(name, "")
    return (AnswerFormats(format, think_format("qwen3")), "<think>\n") if thinks else (AnswerFormats(format), "")


@pytest.mark.parametrize(("format", "backend"), BY_BACKEND, ids=NAMES)
def test_arguments_of_every_kind(format: ToolFormat, backend: str) -> None:
    thinks = backend == "auto"
    formats, before = formats_for(format, thinks)
    assert formats.demanded(TOOLS) is format, "its own format is kept"
    drops = format.names[0] == "muse_glimmer"  # the marks of its thoughts, wherever they are
    thoughts = formats.reasoning.close if formats.reasoning is not None and not drops else ()
    backends = vocabulary_for(*marks_of(format), *thoughts)
    called = set()
    for choice in ("required", "few"):
        constraint = constraint_of(job(TOOLS, choice), formats, before)
        assert constraint is not None
        spec = replace(constraint.spec(NO_DEFAULTS), backend=GrammarBackend(backend))
        for seed, text in enumerate(written(spec, backends, 12)):
            calls = calls_of(text, formats, before, seed)
            assert calls and calls == calls_of(text, formats, before, None)
            called |= {name for name, _ in calls}
            for name, arguments in calls:
                assert choice == "required" or name == choice
                Draft202012Validator(SCHEMAS[name]).validate(arguments)
    assert called and called <= set(SCHEMAS), "of long ones none may end within the draws"


def strict(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return tool(name, schema, strict=True)


@pytest.mark.parametrize(("format", "backend"), BY_BACKEND, ids=NAMES)
def test_a_strict_tool_among_others(format: ToolFormat, backend: str) -> None:
    """With `auto`, text is free; a call that begins is one of the tools, and that of a strict one is valid."""
    formats, form = AnswerFormats(format), format.form
    assert form is not None
    tools = [strict("few", FEW), tool("limits", LIMITS)]
    constraint = constraint_of(job(tools, "auto"), formats, "")
    assert constraint is not None
    spec = replace(constraint.spec(NO_DEFAULTS), backend=GrammarBackend(backend))
    backends = vocabulary_for(*marks_of(format))
    found, numbers = compiled(spec, backends), {piece: token for token, piece in enumerate(backends.vocabulary.pieces)}

    def fits(text: str) -> bool:
        matcher = found.matcher()
        return all(matcher.accept(numbers[bytes([byte])]) for byte in text.encode()) and matcher.accept(1)

    start = form.open + form.begin.replace(NUMBER, "1")
    assert fits("Well. [1] {2} <b> f(x)")
    assert not fits(f"So {start.replace(NAME, 'other')}") or start[:1] == "[", "a bracket may open anything"
    call = start.replace(NAME, "few") + ("{}" if form.written is JSON else "") + form.end + form.close
    assert fits(f"So {call}"), call
    assert fits(f"{call} so") or form.once
    assert not fits(start.replace(NAME, "few") + "%" + form.end + form.close)


def test_what_a_format_cannot_keep_is_json_or_refused() -> None:
    """Where a call is demanded it is written as JSON; a strict tool is refused by the keyword."""
    odd = {"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1}
    for name in ("qwen3_coder", "pythonic", "gemma4"):
        formats = AnswerFormats(tool_format(name))
        assert formats.demanded([tool("odd", odd)]) is JSON_CALLS
        with pytest.raises(InvalidRequestError, match=r"'odd' is strict.*minProperties"):
            constraint_of(job([strict("odd", odd)], "auto"), formats, "")
    assert AnswerFormats(tool_format("hermes")).demanded([tool("odd", odd)]).names[0] == "hermes"


def test_what_a_short_schema_is_written_out_to_has_a_limit() -> None:
    """A hundred characters of nested arrays may say what takes millions to write out: nobody waits for that."""
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(4):
        nested = {"type": "array", "items": nested, "maxItems": 16}
    many = schema_of({"a": nested}, ["a"])
    formats = AnswerFormats(tool_format("pythonic"))
    assert formats.demanded([tool("many", many)]) is JSON_CALLS
    with pytest.raises(InvalidRequestError, match=r"'many' is strict.*characters to write out, of at most"):
        constraint_of(job([strict("many", many)], "auto"), formats, "")
    few = [strict(f"tool_{number}", schema_of({"a": {"type": "string"}}, ["a"])) for number in range(200)]
    with pytest.raises(InvalidRequestError, match=r"tools: .* characters, of at most"):
        constraint_of(job(few, "auto"), formats, "")
    assert written_size({"a": ["bc", 1]}) >= len('{"a": ["bc", 1]}') - 4
