"""What users say of the output they want: one constraint, read as one spec, or one error that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cadence.core.contract.codec import decode_request, encode_request
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.errors import InvalidRequestError
from cadence.core.grammar import (
    MAX_TEXT_BYTES,
    NO_DEFAULTS,
    GrammarBackend,
    GrammarDefaults,
    GrammarKind,
    GrammarSpec,
)
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.core.structured_outputs import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
OLD_TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}


def spec(defaults: GrammarDefaults = NO_DEFAULTS, **fields: Any) -> GrammarSpec:
    params = SamplingParams(structured_outputs=fields)  # type: ignore[arg-type]
    assert params.structured_outputs is not None
    return params.structured_outputs.spec(defaults)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json": SCHEMA}, "json_schema"),
        ({"json": json.dumps(SCHEMA)}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b", "a"]}, "choice"),
        ({"grammar": 'root ::= "a"'}, "ebnf"),
        ({"grammar": '# not ::= here\nstart: "a"'}, "lark"),
        ({"json_object": True}, "json_object"),
        ({"structural_tag": OLD_TAG}, "structural_tag"),
        ({"structural_tag": json.dumps(OLD_TAG)}, "structural_tag"),
    ],
)
def test_each_constraint_becomes_one_spec(fields: dict[str, Any], kind: str) -> None:
    found = spec(**fields)
    assert found.kind == kind
    assert found.source == f"structured_outputs.{next(iter(fields))}"
    assert found == spec(**fields) and found.digest == spec(**fields).digest


def test_what_a_spec_says() -> None:
    assert list(json.loads(spec(json=SCHEMA).text)["properties"]) == ["b", "a"]  # in the order of the schema
    assert json.loads(spec(choice=["a", "b", "a"]).text) == ["a", "b"]
    tag = json.loads(spec(structural_tag=OLD_TAG).text)["format"]
    content = {"type": "json_schema", "json_schema": SCHEMA}
    assert tag["triggers"] == ["<f"] and tag["tags"] == [{"begin": "<f>", "content": content, "end": "</f>"}]
    assert spec(json=SCHEMA).any_whitespace and not spec(json=SCHEMA, disable_any_whitespace=True).any_whitespace
    assert spec(json=SCHEMA, backend="guidance").backend is GrammarBackend.LLGUIDANCE


def test_the_engine_decides_where_the_request_does_not() -> None:
    defaults = GrammarDefaults(GrammarBackend.LLGUIDANCE, any_whitespace=False)
    assert spec(defaults, json=SCHEMA).backend is GrammarBackend.LLGUIDANCE
    assert not spec(defaults, json=SCHEMA).any_whitespace
    assert spec(defaults, json=SCHEMA, backend="xgrammar").backend is GrammarBackend.XGRAMMAR


def test_digests_tell_contents_apart() -> None:
    specs = [
        spec(regex="a"), spec(regex="b"), spec(choice=["a"]), spec(grammar="a"), spec(json=SCHEMA), spec(json={}),
        spec(json=SCHEMA, disable_any_whitespace=True), spec(json=SCHEMA, whitespace_pattern=" ?"),
        spec(json=SCHEMA, backend="xgrammar"), spec(json_object=True),
    ]  # fmt: skip
    assert len({one.digest for one in specs}) == len(specs)
    one = GrammarSpec(GrammarKind.REGEX, "a", source="guided_regex")
    assert one == spec(regex="a") and one.digest == spec(regex="a").digest


def deep(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize(
    ("fields", "names", "says"),
    [
        ({}, "structured_outputs", "exactly one"),
        ({"json": None}, "structured_outputs", "exactly one"),
        ({"json_object": False}, "structured_outputs", "exactly one"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs", "regex and choice are given"),
        ({"regexp": "a"}, "structured_outputs", "Did you mean regex"),
        ({"regex": ""}, "structured_outputs.regex", "not empty"),
        ({"regex": 3}, "structured_outputs.regex", "string"),
        ({"regex": "a\0"}, "structured_outputs.regex", "U\\+0000"),
        ({"regex": "\ud800"}, "structured_outputs.regex", "half a character"),
        ({"regex": "a" * (MAX_TEXT_BYTES + 1)}, "structured_outputs.regex", str(MAX_TEXT_BYTES)),
        ({"json": "{"}, "structured_outputs.json", "no valid JSON"),
        ({"json": "[]"}, "structured_outputs.json", "an object"),
        ({"json": {"const": float("nan")}}, "structured_outputs.json", "not JSON"),
        ({"json": {"const": object()}}, "structured_outputs.json", "not JSON"),
        ({"json": deep(100)}, "structured_outputs.json", "64 deep"),
        ({"json": deep(100_000)}, "structured_outputs.json", "64 deep"),
        ({"json": {"description": "x" * 10_000_000}}, "structured_outputs.json", str(MAX_TEXT_BYTES)),
        ({"json": " " * 10_000_000 + "{}"}, "structured_outputs.json", str(MAX_TEXT_BYTES)),
        ({"choice": []}, "structured_outputs.choice", "1 to"),
        ({"choice": "abc"}, "structured_outputs.choice", "list of strings"),
        ({"choice": ["a", ""]}, "structured_outputs.choice", "not empty"),
        ({"choice": ["a", 1]}, "structured_outputs.choice", "strings"),
        ({"choice": ["a"] * 100_000}, "structured_outputs.choice", "1 to 65536"),
        ({"grammar": ""}, "structured_outputs.grammar", "not empty"),
        ({"structural_tag": "x"}, "structured_outputs.structural_tag", "no valid JSON"),
        ({"structural_tag": {"structures": 1}}, "structured_outputs.structural_tag", "a list each"),
        ({"structural_tag": {"structures": [1], "triggers": []}}, "structured_outputs.structural_tag", "begin"),
        ({"json": {}, "backend": "outlines"}, "structured_outputs.backend", "auto, xgrammar or llguidance"),
        ({"json": {}, "disable_any_whitespace": 1}, "structured_outputs.disable_any_whitespace", "True or False"),
        ({"json": {}, "whitespace_pattern": 1}, "structured_outputs.whitespace_pattern", "a string"),
    ],
)  # fmt: skip
def test_one_error_names_the_field(fields: dict[str, Any], names: str, says: str) -> None:
    for kind in (SamplingParams, lambda **options: BeamSearchParams(beam_width=2, max_tokens=2, **options)):
        with pytest.raises(InvalidRequestError, match=says) as caught:
            kind(structured_outputs=fields)
        assert caught.value.field == names
        assert len(str(caught.value)) < 300


def test_the_older_name_means_the_same() -> None:
    params = SamplingParams(guided_decoding=StructuredOutputsParams(regex="a"))
    assert params.structured_outputs == StructuredOutputsParams(regex="a") and params.guided_decoding is None
    with pytest.raises(InvalidRequestError, match="older name"):
        SamplingParams(guided_decoding={"regex": "a"}, structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_pydantic_models_are_schemas() -> None:
    from pydantic import BaseModel

    class Point(BaseModel):
        x: int

    assert json.loads(spec(json=Point).text)["properties"]["x"]["type"] == "integer"


def test_a_spec_travels_with_its_request() -> None:
    sent = spec(json=SCHEMA, whitespace_pattern=" ?")
    rule = StopRule(frozenset(), frozenset(), 0, 4)
    request = EngineRequest("r", [1], SamplingParams(), rule, seed=0, arrival_time=0.0, attachments=(sent,))
    read = decode_request(encode_request(request)).attached(GrammarSpec)
    assert read is not None and read == sent
    assert read.digest == sent.digest and read.source == sent.source
