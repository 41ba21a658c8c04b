"""Calls that a request demands: whatever a grammar of them allows, the parser of the same format reads as calls of the
tools that were given, and nothing else; before them a model thinks as it likes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cadence.core.errors import InvalidRequestError
from cadence.core.grammar import NO_DEFAULTS
from cadence.core.outputs import CompletionOutput
from cadence.core.sampling_params import SamplingParams
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.entrypoints.server.chat.choice import ParsedChoice
from cadence.entrypoints.server.chat.constraint import constraint_of
from cadence.entrypoints.server.chat.events import ChatJob, ChoiceEnd, TextDelta, ToolCallDelta
from cadence.entrypoints.server.chat.formats import AnswerFormats
from cadence.entrypoints.server.chat.reasoning import think_format
from cadence.entrypoints.server.chat.tools.base import CallArguments, CallBroken, CallStart, Text
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats.in_json import JSON_CALLS
from cadence.entrypoints.server.chat.tools.formats.registry import ROWS, tool_format, tool_parser
from cadence.entrypoints.server.chat.tools.schema import Schemas
from cadence.structured.compiler import Backends, RefusedGrammarError
from tests.helpers.grammars import allowed, compiled, text_of, tiny_backends
from tests.server.tool_writers import WRITERS

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "hourly": {"type": "boolean"},
    },
    "required": ["city", "hourly"],
    "additionalProperties": False,
}
# Keywords that only llguidance keeps.
ODD = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99}},
       "required": ["n"], "additionalProperties": False}  # fmt: skip
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
SEVENS = {"type": "function", "function": {"name": "sevens", "parameters": ODD}}
SCHEMAS = {"get_weather": SCHEMA, "clock": {"type": "object", "maxProperties": 0}, "sevens": ODD}
FORMS = [row for row in (*ROWS, JSON_CALLS) if row.form is not None]
LETTERS = [bytes([code]) for code in range(32, 127)] + [b"\n"]


def backends_for(*texts: str) -> Backends:
    return tiny_backends([*LETTERS, *(text.encode() for text in texts)])


def job(tools: Sequence[dict[str, Any]] = (), choice: str = "none", parallel: bool = True, **params: Any) -> ChatJob:
    sampling = SamplingParams(**params)
    return ChatJob("r", [], sampling, False, tools=tools, tool_choice=choice, parallel_calls=parallel)


def outputs(constraint: StructuredOutputsParams | None, backends: Backends, draws: int = 8) -> list[str]:
    """Drawn at random from what is allowed, the shorter the likelier."""
    assert constraint is not None
    found = compiled(constraint.spec(NO_DEFAULTS), backends)
    texts = []
    for seed in range(draws):
        draw, matcher, tokens = random.Random(seed), found.matcher(), list[int]()
        while not matcher.finished and len(tokens) < 1500:
            choice = allowed(matcher, found.vocab_size)
            assert choice, text_of(tokens, backends.vocabulary)
            stops = [token for token in choice if token in found.stop_ids]
            spaces = draw.random() < 0.2
            solid = [token for token in choice if spaces or backends.vocabulary.pieces[token].strip()]
            token = draw.choice(stops if stops and draw.random() < 0.6 else solid or choice)
            assert matcher.accept(token)
            tokens.append(token)
        if matcher.finished:
            texts.append(text_of(tokens, backends.vocabulary).decode())
    assert len(texts) > draws // 2, "hardly any draw ended"
    return texts


def calls_in(text: str, format: ToolFormat, tools: Sequence[dict[str, Any]], seed: int = 0) -> list[tuple[str, Any]]:
    """The calls that the parser reads, of a text that comes in pieces and has nothing else."""
    parser, draw, pieces = tool_parser(format, Schemas(tools)), random.Random(seed), list[Any]()
    while text:
        size = draw.randint(1, 5)
        pieces += parser.push(text[:size])
        text = text[size:]
    names, arguments = [], dict[int, str]()
    for piece in [*pieces, *parser.finish()]:
        assert not isinstance(piece, CallBroken) and not (isinstance(piece, Text) and piece.text.strip()), piece
        if isinstance(piece, CallStart):
            names.append(piece.name)
        elif isinstance(piece, CallArguments):
            arguments[piece.call] = arguments.get(piece.call, "") + piece.json_text
    return [(name, json.loads(arguments[number])) for number, name in enumerate(names)]


def check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        Draft202012Validator(SCHEMAS[name]).validate(arguments)


@pytest.mark.parametrize("format", FORMS, ids=[row.names[0] for row in FORMS])
def test_what_a_format_allows_its_parser_reads(format: ToolFormat) -> None:
    formats, tools = AnswerFormats(tools=format), [WEATHER, CLOCK]
    form = format.form
    assert form is not None and formats.demanded(tools) is format
    backends = backends_for(form.open, form.begin, form.end, form.close, form.between)
    counts = set()
    for number, text in enumerate(outputs(constraint_of(job(tools, "required"), formats, ""), backends, 24)):
        calls = calls_in(text, format, tools, number)
        check(calls)
        counts.add(len(calls))
    assert (max(counts) > 1 or form.once) and 0 not in counts
    for text in outputs(constraint_of(job(tools, "clock"), formats, ""), backends, 2):
        assert calls_in(text, format, tools) == [("clock", {})]
    for text in outputs(constraint_of(job(tools, "required", parallel=False), formats, ""), backends, 3):
        assert len(calls_in(text, format, tools)) == 1


def test_a_schema_that_only_llguidance_keeps_is_kept() -> None:
    for format in (tool_format("hermes"), tool_format("mistral"), tool_format("kimi_k2"), JSON_CALLS):
        formats, form = AnswerFormats(tools=format), format.form
        assert form is not None
        backends = backends_for(form.open, form.begin, form.end, form.close)
        constraint = constraint_of(job([SEVENS, CLOCK], "required"), formats, "")
        assert constraint is not None and backends.compile(constraint.spec(NO_DEFAULTS))[0] == "llguidance"
        for text in outputs(constraint, backends, 5):
            check(calls_in(text, format, [SEVENS, CLOCK]))


THINKS = {"<think>": "<think>\n", "<think> or nothing": "", "nothing": "<think>\n\n</think>\n\n"}


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("before", THINKS.values(), ids=THINKS)
def test_thoughts_come_first_and_are_free(backend: str, before: str) -> None:
    """`before`: the end of the prompt."""
    formats = AnswerFormats(reasoning=think_format("qwen3"))
    asked = StructuredOutputsParams(regex="[ab]{2}", backend=backend)
    constraint = constraint_of(job(structured_outputs=asked), formats, before)
    assert constraint is not None
    backends = backends_for()
    found = compiled(constraint.spec(NO_DEFAULTS), backends)
    pieces = {piece: token for token, piece in enumerate(backends.vocabulary.pieces) if piece}

    def fits(text: str) -> bool:
        matcher = found.matcher()
        return all(matcher.accept(pieces[letter.encode()]) for letter in text) and matcher.accept(1)

    begun, closed = before == "<think>\n", before.endswith("</think>\n\n")
    assert fits("ab") is not begun and fits("a </think>ab") is begun
    assert fits('so {"x"} < </thin\n</think>\n\nba') is begun
    assert fits("<think>a</think>\nbb") is not closed  # where thoughts have begun, it is one of them
    assert not fits("<think>ab") and not fits("abc") and not fits("x")


def test_calls_or_the_format_that_was_asked_for() -> None:
    formats = AnswerFormats(tools=tool_format("hermes"))
    asked = StructuredOutputsParams(choice=["yes", "no"], source="response_format")
    constraint = constraint_of(job([WEATHER], "auto", structured_outputs=asked), formats, "")
    assert constraint is not None and constraint.source == "response_format"
    texts = outputs(constraint, backends_for(), 16)
    calls = [text for text in texts if text not in ("yes", "no")]
    assert 0 < len(calls) < len(texts) and all(calls_in(text, tool_format("hermes"), [WEATHER]) for text in calls)


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek_v31", "llama3_json"])
def test_a_strict_tool_constrains_calls_once_they_begin(name: str) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    format = tool_format(name)
    assert format.form is not None
    formats = AnswerFormats(tools=format)
    assert constraint_of(job([WEATHER, CLOCK], "auto"), formats, "") is None
    constraint = constraint_of(job([strict, CLOCK], "auto"), formats, "")
    assert constraint is not None
    backends = backends_for(format.form.open, format.form.begin)
    found = compiled(constraint.spec(NO_DEFAULTS), backends)
    matcher = found.matcher()
    pieces = {piece: token for token, piece in enumerate(backends.vocabulary.pieces) if piece}
    for byte in f"Well, {{ or < I say: {format.form.start}".encode():
        assert matcher.accept(pieces[bytes([byte])])
    starts = {backends.vocabulary.pieces[token] for token in allowed(matcher, found.vocab_size)}
    assert starts == {b"g", b"c"}, "only the tools that were given can be called"


def test_a_bad_schema_names_its_tool() -> None:
    bad = {"type": "function", "function": {"name": "broken", "parameters": {"type": "object", "properties": 5}}}
    constraint = constraint_of(job([WEATHER, bad], "required"), AnswerFormats(), "")
    assert constraint is not None and constraint.source == "tools"
    with pytest.raises(RefusedGrammarError, match="'broken'"):
        backends_for().compile(constraint.spec(NO_DEFAULTS))


def test_lark_is_refused_after_thoughts() -> None:
    asked = StructuredOutputsParams(grammar='start: "a"')
    formats = AnswerFormats(reasoning=think_format("qwen3"))
    with pytest.raises(InvalidRequestError, match=r"structured_outputs\.grammar"):
        constraint_of(job(structured_outputs=asked), formats, "")


WRITTEN = [row for row in FORMS if row.names[0] in WRITERS]
TWO = [("get_weather", {"city": "Paris", "hourly": True}), ("get_weather", {"city": "Oslo", "hourly": False})]


@pytest.mark.parametrize("thought", ["", "<think>Which city?</think>"], ids=["plain", "after a thought"])
@pytest.mark.parametrize("format", WRITTEN, ids=[row.names[0] for row in WRITTEN])
def test_calls_that_length_cuts_off(format: ToolFormat, thought: str) -> None:
    """Beside whole calls stands no text, and no half call; where no call is whole, the text shows what there is."""
    formats = AnswerFormats(tools=format, reasoning=think_format("qwen3") if thought else None)
    reading, written, counts = formats.reading([WEATHER], True), WRITERS[format.names[0]](TWO), set()
    for cut in (*range(0, len(written), 9), len(written)):
        choice = ParsedChoice(0, formats.parser(reading, "", stream=False), "required", lambda: "id")
        events = choice.read(CompletionOutput(0, thought + written[:cut], [7], finish_reason="length"))
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        deltas = [event for event in events if isinstance(event, ToolCallDelta)]
        calls = [(event.name, "".join(other.arguments for other in deltas if other.call == event.call))
                 for event in deltas if event.name]  # fmt: skip
        assert [(name, json.loads(arguments)) for name, arguments in calls] == TWO[: len(calls)]
        assert not calls if text.strip() else calls or not written[:cut].strip(), (cut, text)
        assert choice.reasoning == ("Which city?" if thought else "")
        assert isinstance(events[-1], ChoiceEnd) and events[-1].finish_reason == "length"
        counts.add(len(calls))
    assert counts >= {0, 2}, "of a list that is a whole there may be all calls or none"
