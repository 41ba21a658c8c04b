"""What the generator covers, and what the judge lets pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.app import create_app
from tests.hostile import judge, large
from tests.hostile.bodies import join
from tests.hostile.case import Case
from tests.hostile.cases import Cases
from tests.hostile.sample import sample, traits_of
from tests.hostile.schema import endpoints, field_slots
from tests.hostile.seeds import ON_DEMAND, SEEDS
from tests.hostile.values import boundaries, example, fixed, largest
from tests.hostile.wire import Answer, Request
from tests.server.helpers import FakeLLM, save_fake_model


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    llm: Any = FakeLLM(save_fake_model(tmp_path_factory.mktemp("fake_model")))
    return create_app(llm, ServeOptions(allow_runtime_lora_updating=True)).openapi()


def test_a_number_is_a_case(document: dict[str, Any]) -> None:
    one, other, third = Cases(document, 1), Cases(document, 1), Cases(document, 2)
    assert [one.case(n) for n in range(80)] == [other.case(n) for n in range(79, -1, -1)][::-1]
    assert [one.case(n) for n in range(80)] != [third.case(n) for n in range(80)]


def test_every_field_of_every_endpoint_has_its_turn(document: dict[str, Any]) -> None:
    cases = Cases(document, 1)
    names = {case.name.split(" = ")[0] for case in cases.small(cases.one_turn)}
    for endpoint in endpoints(document):
        for field, schema in endpoint.fields.items():
            assert {f"{endpoint} {slot.path}" for slot in field_slots(field, schema)} <= names


def test_a_sample_has_every_kind_of_case(document: dict[str, Any]) -> None:
    cases = Cases(document, 1)
    chosen = sample(cases)
    assert len(chosen) < cases.one_turn // 5
    traits = {trait for number in chosen for trait in traits_of(cases.case(number))}
    fields = {field for endpoint in endpoints(document) for field in endpoint.fields}
    assert fields <= {trait[1] for trait in traits if trait[0] == "field"}
    routes = {(endpoint.method, endpoint.path) for endpoint in endpoints(document) if endpoint.fields}
    for generator in ("one field", "several fields", "body"):
        assert routes <= {trait[1:] for trait in traits if trait[0] == generator}


def test_every_body_has_a_seed(document: dict[str, Any]) -> None:
    assert {one.path for one in endpoints(document) if one.fields} == {*SEEDS, *ON_DEMAND}


def test_slots_lie_inside_their_fields() -> None:
    schema = {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"properties": {"a": {"type": "string"}}}]}
    slots = {slot.path: slot.fill(b"X") for slot in field_slots("f", schema)}
    assert slots == {"f": b"X", "f[]": b"[X]", "f.a": b'{"a": X}'}


def test_boundaries_and_examples_follow_the_schema() -> None:
    schema = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 128}, {"type": "null"}]}
    assert {value.text for value in boundaries(schema)} == {b"0", b"1", b"2", b"127", b"128", b"129"}
    texts = {len(json.loads(value.text)) for value in boundaries({"type": "string", "maxLength": 9})}
    assert texts == {8, 9, 10}
    assert json.loads(largest(schema)) == 128
    assert len(json.loads(largest({"type": "array", "items": {"type": "integer"}, "maxItems": 5}))) == 5
    assert 1 <= json.loads(example({"type": "integer", "minimum": 1, "maximum": 128})) <= 128


def test_values_are_all_different() -> None:
    values = fixed()
    assert len({value.name for value in values}) == len(values) > 120
    assert len({value.text for value in values}) > 120


@pytest.mark.parametrize("size", [large.SMALLEST, 300_001])
def test_large_values_keep_to_their_size(size: int) -> None:
    for name, make in (*large.VALUES.items(), *large.BODIES.items()):
        assert size // 2 < len(make(size)) <= size, name
    assert json.loads(large.VALUES["wide object"](size))


def test_keys_may_be_doubled() -> None:
    assert join([("a", b"1"), ("a", b"NaN")]) == b'{"a":1,"a":NaN}'


def _case(path: str = "/v1/completions", **about: Any) -> Case:
    return Case(0, "", Request("POST", path, body=b'{"top_logprobs":9}'), **about)


def _error(message: str = "max_tokens must be at least 1.", param: str | None = None) -> bytes:
    error = {"message": message, "type": "e", "param": param, "code": 400, "reason": None}
    return json.dumps({"error": error}).encode()


JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    ("case", "answer", "words"),
    [
        (_case(), Answer(400, JSON, _error(), "whole"), ""),
        (_case(), Answer(200, JSON, b'{"choices": []}', "whole"), ""),
        (_case(), Answer(200, SSE, b'data: {"choices": []}\n\ndata: [DONE]\n\n', "whole"), ""),
        (_case(leave_after=3), Answer(0, {}, b"", "left"), ""),
        (_case(is_http=False), Answer(0, {}, b"", "closed"), ""),
        (_case("/v1/messages"), Answer(400, JSON, b'{"type":"error","error":{"type":"e","message":"m"}}', "whole"), ""),
        (_case(), Answer(500, JSON, _error(), "whole"), "status 500"),
        (_case(), Answer(503, JSON, _error(), "whole"), "status 503"),
        (_case(), Answer(422, JSON, _error(), "whole"), "status 422"),
        (_case(), Answer(0, {}, b"", "closed"), "closed without"),
        (_case(), Answer(200, JSON, b'{"choi', "closed"), "closed without"),
        (_case(), Answer(0, {}, b"", "timeout"), "no answer within"),
        (_case(), Answer(200, JSON, b'{"logprob": NaN}', "whole"), "not JSON"),
        (_case(), Answer(400, {"content-type": "text/plain"}, b"Bad Request", "whole"), "of type"),
        (_case(), Answer(400, JSON, b'{"detail": []}', "whole"), "documented shape"),
        (_case("/v1/messages"), Answer(400, JSON, _error(), "whole"), "documented shape"),
        (_case(), Answer(400, JSON, _error("KeyError: 'a'"), "whole"), "internal text"),
        (_case(), Answer(400, JSON, _error("torch: bad file"), "whole"), "internal text"),
        (_case(), Answer(400, JSON, _error("a tensor by torch.save"), "whole"), ""),
        (_case(), Answer(400, JSON, _error("'NoneType' has no len()"), "whole"), "internal text"),
        (_case(), Answer(400, JSON, _error("Expected `int`, got `str`"), "whole"), "internal text"),
        (_case(), Answer(400, JSON, _error("<Task object at 0x7f>"), "whole"), "internal text"),
        (
            _case(known_fields=frozenset({"top_logprobs"})),
            Answer(400, JSON, _error(param="logprobs"), "whole"),
            "blames",
        ),
        (_case(known_fields=frozenset({"stop"})), Answer(400, JSON, _error(param="stop[3]"), "whole"), ""),
        (_case(blamed="seed"), Answer(400, JSON, _error(param="top_k"), "whole"), "blames"),
        (_case(expected=frozenset({400})), Answer(200, JSON, b"{}", "whole"), "status 200"),
        (_case(), Answer(200, SSE, b'data: {"choices": []}\n\n', "whole"), "does not end"),
        (_case(), Answer(200, SSE, b'data: {"choices\n\ndata: [DONE]\n\n', "whole"), "not JSON"),
        (
            _case(),
            Answer(200, SSE, b'data: {"error": {"type": "server_error", "message": "m"}}\n\n', "whole"),
            "failed",
        ),
    ],
)
def test_the_judge(case: Case, answer: Answer, words: str) -> None:
    found = judge.problems(case, answer)
    assert any(words in one for one in found) if words else not found
