"""Schemas of tools that lead far or nowhere: whatever they refer to, the work on them is bounded, in every format."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.constraint import constraint_of
from cadence.entrypoints.server.chat.formats import AnswerFormats
from cadence.entrypoints.server.chat.tools.base import CallStart
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats.registry import ROWS, tool_format, tool_parser
from cadence.entrypoints.server.chat.tools.schema import Schemas, schema_types
from cadence.entrypoints.server.chat.tools.schema_budget import MAX_NODES, SchemaBudget
from tests.helpers.processor_time import at_most
from tests.helpers.wide import examples
from tests.server.test_completions import Serve
from tests.server.test_forced_calls import job
from tests.server.tool_writers import WRITERS

LIMIT = MAX_NODES >> 5  # of these tests, as counting calls takes its time
MOST_CALLS = 60 * LIMIT  # of functions, for one request
FORMS = list({repr(row.form.written): row for row in ROWS if row.form is not None}.values())
KEYS = ("a", "b", "c")


class TooManyCallsError(Exception):
    pass


@contextmanager
def counted_calls(most: int = MOST_CALLS) -> Iterator[None]:
    """Ends what calls more functions than that, so that a walk without end fails."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls > most:
            sys.setprofile(None)
            raise TooManyCallsError(f"more than {most} calls")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def of(a: Any, **defs: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": a}, "required": ["a"], "$defs": defs}


def chain(word: str, width: int, last: Any) -> dict[str, Any]:
    """Each of several definitions is many times the next."""
    names = [f"d{number}" for number in range(12)]
    defs: dict[str, Any] = {name: {word: [{"$ref": f"#/$defs/{after}"}] * width} for name, after in pairwise(names)}
    return of({"$ref": "#/$defs/d0"}, **defs, d11=last)


SHAPES: dict[str, Any] = {
    "property-of-itself": of({"anyOf": [{"$ref": "#/properties/a"}] * 40}),
    "definition-of-itself": of({"$ref": "#/$defs/d"}, d={"$ref": "#/$defs/d"}),
    "choice-of-itself": of({"$ref": "#/$defs/d"}, d={"anyOf": [{"$ref": "#/$defs/d"}, {"type": "string"}]}),
    "choices-of-itself": of({"$ref": "#/$defs/d"}, d={"oneOf": [{"$ref": "#/$defs/d"}] * 9}),
    "item-of-itself": of({"$ref": "#/$defs/d"}, d={"type": "array", "items": {"$ref": "#/$defs/d"}}),
    "chain-any": chain("anyOf", 40, {"type": "string"}),
    "chain-one": chain("oneOf", 40, {"enum": ["x", 1]}),
    "chain-all": chain("allOf", 40, {"type": "null"}),
    "nested-types": of({"type": [["string"], ["integer"]]}),
    "required-list": {"type": "object", "properties": {"a": {"type": "string"}}, "required": [[1]]},
    "required-inside": of({"type": "object", "properties": {"x": {"type": "null"}}, "required": [{}]}),
    "required-text": {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
    "wide-object": of({"anyOf": [{"$ref": "#/$defs/d"}] * 200}, d={f"x-{n}": n for n in range(200)}),
    "values-again": of({"anyOf": [{"$ref": "#/$defs/d"}] * 200}, d={"enum": [f"v{n}" for n in range(200)]}),
    "shared": {"properties": {f"p{n}": {"$ref": "#/$defs/d"} for n in range(300)},
               "$defs": {"d": {"anyOf": [{"type": "string"}, {"type": "null"}] * 150}}},
    "patterns": {"properties": {f"p{n}": {"type": "string", "pattern": f"^{'[a-c]' * 200}$"} for n in range(200)}},
    "sets-that-never-close": of({"type": "string", "pattern": f"^{'[' * 30_000}$"}),
    "sets-one-after-the-other": of({"type": "string", "pattern": f"^{'[]' * 15_000}$"}),
    "long-types": {"properties": {f"p{n}": {"$ref": "#/$defs/d"} for n in range(3_000)},
                   "$defs": {"d": {"type": "\u0130" * 500_000}}},
    "long-values": of({"type": ["string", "array"], "enum": ["[" + "'a'," * 400_000 + "]"]}),
}  # fmt: skip


def generated(seed: int) -> dict[str, Any]:
    """A schema of references, choices, objects and lists of any kind, some of them wrong."""
    draw = random.Random(seed)

    def node(depth: int) -> Any:
        makers: list[Callable[[], Any]] = [
            lambda: {"$ref": f"#/{draw.choice(('$defs', 'properties', 'definitions'))}/{draw.choice(KEYS)}"},
            lambda: {
                "type": draw.choice(("string", "integer", "null", "boolean", "array", "object", 3, ["string", 1]))
            },
            lambda: {"enum": draw.choice(([], ["x"], [1, None, [2]], "x"))},
            lambda: draw.choice((None, True, [], {}, "#/$defs/a")),
        ]
        if depth < 4:
            makers += 2 * [
                lambda: {draw.choice(("anyOf", "allOf", "oneOf")): [node(depth + 1)] * draw.choice((0, 1, 2, 40))},
                lambda: {"type": "array", "items": node(depth + 1), "maxItems": draw.choice((0, 2, 16, -1, "x"))},
                lambda: {"type": "object", "properties": {key: node(depth + 1) for key in KEYS},
                         "required": draw.choice(([], ["a"], [[1]], [{}], "a", None, ["z"]))},
            ]  # fmt: skip
        return draw.choice(makers)()

    return {
        "type": "object",
        "properties": {key: node(0) for key in KEYS},
        "required": draw.choice(([], ["a", "b"], [[1]], 7)),
        "$defs": {key: node(1) for key in KEYS},
        "definitions": {key: node(2) for key in KEYS},
    }


def held(parameters: Any, row: ToolFormat) -> list[str]:
    """What is refused of a request that holds the model to calls with these arguments, in each way there is."""
    formats, refused = AnswerFormats(row), []
    for tools, choice in (([tool(parameters)], "required"), ([tool(parameters, strict=True)], "auto")):
        with counted_calls():
            try:
                constraint_of(job(tools, choice), formats, "")
                formats.parser(formats.reading(tools, choice == "required"), "", stream=True)
            except InvalidRequestError as error:
                refused.append(str(error))
                assert error.field == "tools"
    return refused


@pytest.fixture(autouse=True, scope="module")
def limit() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchemaBudget.__init__, "__defaults__", (LIMIT,))
        yield


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_in_every_format(name: str) -> None:
    for row in FORMS:
        held(SHAPES[name], row)


@pytest.mark.parametrize("name", ["sets-that-never-close", "sets-one-after-the-other", "long-types", "long-values"])
def test_long_texts_in_schemas_are_read_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit of a server, where no call of a function is long."""
    monkeypatch.setattr(SchemaBudget.__init__, "__defaults__", (MAX_NODES,))
    for row in FORMS:
        for tools, choice in (([tool(SHAPES[name])], "required"), ([tool(SHAPES[name], strict=True)], "auto")):
            with at_most(5.0, row.names[0]), suppress(InvalidRequestError):
                constraint_of(job(tools, choice), AnswerFormats(row), "")


@examples(30, 400)
@given(st.integers(0, 2**32))
def test_generated_schemas_in_every_format(seed: int) -> None:
    for row in FORMS:
        held(generated(seed), row)


def test_a_walk_that_leads_too_far_says_how_far_it_may() -> None:
    refused = held(SHAPES["shared"], tool_format("qwen3_coder"))
    assert len(refused) == 2 and all(f"more than {LIMIT} schemas" in message for message in refused)


def test_types_are_found_once_for_each_node() -> None:
    """A schema that names itself forty times over is as much work as it has nodes and names."""
    root, budget = SHAPES["property-of-itself"], SchemaBudget()
    root["properties"]["a"]["type"] = "integer"
    assert schema_types(root["properties"]["a"], root, budget) == {"integer"}
    assert budget.spent < 200
    deep = chain("anyOf", 40, {"type": "boolean"})
    assert schema_types(deep["properties"]["a"], deep, budget) == {"boolean"}, "however far down"


@pytest.mark.parametrize("name", WRITERS)
def test_reading_an_answer_walks_over_each_schema_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls a model writes: the types of parameters are known when the answer begins."""
    wide = {"anyOf": [{"type": "string"}, {"type": "null"}] * 50}
    spent: list[int] = []
    monkeypatch.setattr(SchemaBudget, "spend", lambda self, nodes=1: spent.append(nodes))
    parser = tool_parser(tool_format(name), Schemas([tool(of(wide))]))
    before = len(spent)
    pieces = [*parser.push(WRITERS[name]([("f", {"a": "x"})] * 30)), *parser.finish()]
    assert before and any(isinstance(piece, CallStart) for piece in pieces)
    assert len(spent) - before <= 110, "nodes of the schema"


FUNCTION = {"name": "f", "parameters": of({"anyOf": [{"type": "string"}, {"type": "null"}]})}
ASKED = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
WITH_TOOLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**ASKED, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    "/v1/responses": {"input": "a", "max_output_tokens": 16, "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {**ASKED, "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}]},
}


@pytest.mark.parametrize("path", WITH_TOOLS)
def test_no_walk_is_on_the_event_loop(path: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    spend, walked, loop = SchemaBudget.spend, set[int](), list[int]()

    def noted(self: SchemaBudget, nodes: int = 1) -> None:
        walked.add(threading.get_ident())
        spend(self, nodes)

    monkeypatch.setattr(SchemaBudget, "spend", noted)
    app = serve(tool_call_parser="qwen3_coder", enable_auto_tool_choice=True)
    app.do(lambda: loop.append(threading.get_ident()))
    with app.client() as client:
        reply = client.post(path, json={"model": "fake", **WITH_TOOLS[path]})
    assert reply.status_code == 200, reply.text
    assert walked and loop and not walked & {*loop}
