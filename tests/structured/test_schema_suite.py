"""Public JSON schemas: what is not refused is followed to the letter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from cadence.structured.compiler import RefusedGrammarError, try_out
from tests.helpers.grammars import grammar, json_backends, json_text
from tests.helpers.real_schemas import real_schemas
from tests.helpers.schema_suite import suite_schemas

pytestmark = pytest.mark.slow

DRAWS = 3
_NOT_THERE = ("Unsatisfiable schema", "Resource 'http", 'Unimplemented keys: ["$dynamicAnchor"]')


@pytest.mark.wide
def test_every_finished_output_of_the_test_suite_validates() -> None:
    counts = _followed(suite_schemas())
    assert counts["followed"] >= 130, counts
    assert counts["outputs"] >= DRAWS * counts["followed"] * 0.9, counts


def test_outputs_of_some_real_schemas_validate() -> None:
    counts = _followed(real_schemas()[::10])
    assert counts["finished"] >= 50 and 10 <= counts["refused"] <= 40, counts
    assert counts["outputs"] >= DRAWS * counts["followed"] * 0.8, counts


@pytest.mark.wide
def test_every_finished_output_of_real_schemas_validates() -> None:
    counts = _followed(real_schemas())
    assert counts["finished"] >= 600 and 150 <= counts["refused"] <= 250, counts
    assert counts["outputs"] >= DRAWS * counts["followed"] * 0.9, counts


def _followed(schemas: list[tuple[str, dict[str, Any]]]) -> Counter[str]:
    """How many were refused, each with a sentence that names what cannot be kept, and how many followed; of these,
    how many were finished, and the outputs of all draws."""
    backends, counts = json_backends(), Counter[str]()
    for title, schema in schemas:
        try:
            found = grammar("json_schema", json.dumps(schema), backends)
            try_out(found, step_seconds=1.0)
        except RefusedGrammarError as error:
            assert len(str(error)) < 400 and _says_why(str(error), schema), (title, str(error))
            counts["refused"] += 1
            continue
        drawn = [json_text(found, backends.vocabulary, seed) for seed in range(DRAWS)]
        outputs = [output for output in drawn if output is not None]
        for output in outputs:
            assert _is_valid(json.loads(output), schema), (title, output)
        counts += Counter(followed=1, finished=bool(outputs), outputs=len(outputs))
    return counts


def _is_valid(value: Any, schema: dict[str, Any]) -> bool:
    try:
        return bool(validator_for(schema, default=Draft202012Validator)(schema).is_valid(value))
    except Unresolvable:  # a schema elsewhere, which the grammar did without
        return False


def _says_why(sentence: str, schema: dict[str, Any]) -> bool:
    """It names a keyword of the schema, or what is not there to be followed."""
    reason = sentence.removeprefix("is no JSON schema that can be followed: ")
    return reason.startswith(_NOT_THERE) or any(name in reason for name in _keywords(schema) if len(name) > 1)


def _keywords(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for value in inner:
        yield from _keywords(value)
