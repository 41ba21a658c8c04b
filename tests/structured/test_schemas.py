"""JSON schemas, held to `jsonschema`: every finished output validates, whichever backend was chosen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cadence.structured.compiler import Backends, RefusedGrammarError, try_out
from cadence.structured.schema import closed, suits_xgrammar
from tests.helpers.grammars import grammar, json_backends, json_text

NAMES = st.sampled_from(["a", "b c", "é", 'q"', "x/y", "very_long_name"])
SIZES = st.integers(0, 3)


def _limits(least: str, most: str) -> st.SearchStrategy[dict[str, int]]:
    both = st.tuples(SIZES, SIZES).map(lambda pair: {least: min(pair), most: max(pair)})
    return st.one_of(st.just({}), SIZES.map(lambda size: {least: size}), SIZES.map(lambda size: {most: size}), both)


LEAVES = st.one_of(
    st.just({}),
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.just({"type": ["string", "null"]}),
    _limits("minLength", "maxLength").map(lambda limits: {"type": "string", **limits}),
    st.tuples(st.integers(-30, 30), st.integers(0, 40)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
    ),
    st.lists(st.sampled_from(["a", "é", 1, None, True, 2.5, {"k": [1]}]), min_size=1).map(lambda some: {"enum": some}),
    st.sampled_from(["only", 7]).map(lambda value: {"const": value}),
)


def _objects(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def made(properties: dict[str, Any], count: int, more: bool) -> dict[str, Any]:
        required = list(properties)[:count]
        further = {"additionalProperties": False} if more else {}
        return {"type": "object", "properties": properties, "required": required, **further}

    return st.builds(made, st.dictionaries(NAMES, values, max_size=3), SIZES, st.booleans())


def _larger(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(lambda items, limits: {"type": "array", "items": items, **limits}, values,
                       _limits("minItems", "maxItems"))  # fmt: skip
    maps = values.map(lambda value: {"type": "object", "additionalProperties": value})
    either = st.lists(values, min_size=1, max_size=3).map(lambda some: {"anyOf": some})
    return st.one_of(_objects(values), arrays, maps, either)


SCHEMAS = st.recursive(LEAVES, _larger, max_leaves=6)


@pytest.fixture(scope="module")
def backends() -> Backends:
    return json_backends()


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@given(schema=SCHEMAS, compact=st.booleans())
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_schemas(backends: Backends, backend: str, schema: dict[str, Any], compact: bool) -> None:
    text = json.dumps(schema)
    assert suits_xgrammar(schema)
    try:
        found = grammar("json_schema", text, backends, backend, any_whitespace=not compact)
    except RefusedGrammarError:
        assert backend == "llguidance"  # that no value can satisfy, as far as it knows
        return
    check = Draft202012Validator(schema)
    for seed in range(4):
        output = json_text(found, backends.vocabulary, seed)
        if output is not None:
            check.validate(json.loads(output))


WANTED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def test_objects_have_the_properties_they_name(backends: Backends) -> None:
    for backend in ("xgrammar", "llguidance"):
        found = grammar("json_schema", json.dumps(WANTED), backends, backend)
        outputs = [json_text(found, backends.vocabulary, seed) for seed in range(30)]
        values = [json.loads(output) for output in outputs if output is not None]
        assert len(values) > 15 and all(list(value) == ["a"] for value in values)


def test_what_is_put_together_stays_open() -> None:
    shut = {**WANTED, "additionalProperties": False}
    assert closed(WANTED) == shut
    assert closed({"anyOf": [WANTED, {"type": "null"}]}) == {"anyOf": [shut, {"type": "null"}]}
    for whole in (
        {"allOf": [WANTED, WANTED]},
        {**WANTED, "anyOf": [{"required": ["b"]}]},
        {**WANTED, "required": ["b"]},
    ):
        assert closed(whole) == whole
    opened = {**WANTED, "additionalProperties": True}
    assert closed(opened) == opened


FURTHER = [  # (what a schema says of further properties, outputs that fit, outputs that do not)
    ({}, ['{"a": 1}'], ['{"a": 1, "x": true}']),
    ({"additionalProperties": True}, ['{"a": 1, "x": true}', '{"a": 1, "y": 2}'], ["{}"]),
    ({"additionalProperties": {"type": "boolean"}}, ['{"a": 1, "x": true}'], ['{"a": 1, "x": 2}']),
    ({"patternProperties": {"^x": {"type": "boolean"}}, "additionalProperties": False}, ['{"a": 1, "x": true}'],
     ['{"a": 1, "x": 2}', '{"a": 1, "y": true}']),
]  # fmt: skip


@pytest.mark.parametrize(("said", "fitting", "others"), FURTHER)
def test_what_a_schema_says_of_further_properties_is_kept(
    backends: Backends, said: dict[str, Any], fitting: list[str], others: list[str]
) -> None:
    found = grammar("json_schema", json.dumps({**WANTED, **said}), backends)
    numbers = {piece: token for token, piece in enumerate(backends.vocabulary.pieces)}

    def fits(text: str) -> bool:
        matcher = found.matcher()
        return all(matcher.accept(numbers[letter.encode()]) for letter in text) and matcher.accept(1)

    assert all(map(fits, fitting)) and not any(map(fits, others))


@pytest.mark.parametrize("keyword", ["propertyNames", "unevaluatedProperties"])
def test_what_is_not_kept_of_further_properties_is_refused_by_name(backends: Backends, keyword: str) -> None:
    with pytest.raises(RefusedGrammarError, match=keyword):
        grammar("json_schema", json.dumps({**WANTED, keyword: {}}), backends)


BEYOND = [
    {"type": "integer", "multipleOf": 3}, {"type": "array", "uniqueItems": True}, {"not": {}}, {"properties": {}},
    {"allOf": [WANTED]}, {"oneOf": [WANTED]}, {"$ref": "other.json"}, {"$ref": "#"}, {"if": {}},
    {"type": "object", "required": ["a"]}, {"enum": [1], "minimum": 2},
    {"type": "string", "maxLength": 500}, {"type": "string", "pattern": "^a(b[0-9]+)?$"},
    {**WANTED, "patternProperties": {}}, {"type": "array", "contains": {}}, {"$id": "x", "type": "null"},
    {"type": "number", "minimum": 0}, {"type": "object", "properties": {"a": {"not": {}}}},
    {"$defs": {"a": {"not": {}}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", BEYOND)
def test_what_xgrammar_reads_past_is_not_left_to_it(schema: dict[str, Any]) -> None:
    assert not suits_xgrammar(schema)


def test_what_only_leads_back_to_itself_is_refused_for_that_reason() -> None:
    """llguidance finds out when a token is asked for; that is not too much work."""
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 40}}, "required": ["a"]}
    found = grammar("json_schema", json.dumps(schema), json_backends())
    with pytest.raises(RefusedGrammarError, match=r"^leads to where no token of this model can follow$"):
        try_out(found, step_seconds=60.0)
