"""The public suite of JSON schemas: what is not refused is followed to the letter."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from cadence.structured.compiler import RefusedGrammarError, try_out
from tests.helpers.grammars import grammar, json_backends, json_text
from tests.helpers.schema_suite import suite_schemas

pytestmark = pytest.mark.slow

DRAWS = 3


def test_every_finished_output_validates() -> None:
    backends = json_backends()
    counts: Counter[str] = Counter()
    for title, schema in suite_schemas():
        schema = {name: value for name, value in schema.items() if name != "$schema"}
        try:
            found = grammar("json_schema", json.dumps(schema), backends)
            try_out(found, step_seconds=1.0)
        except RefusedGrammarError as error:
            assert len(str(error)) < 400, title
            counts["refused"] += 1
            continue
        check = Draft202012Validator(schema)
        counts["followed"] += 1
        for seed in range(DRAWS):
            output = json_text(found, backends.vocabulary, seed)
            if output is None:
                continue
            counts["finished"] += 1
            try:
                assert check.is_valid(json.loads(output)), (title, output)
            except Unresolvable:  # a schema elsewhere, which the grammar did without
                counts["elsewhere"] += 1
    assert counts["followed"] >= 130 and counts["elsewhere"] == 0, counts
    assert counts["finished"] >= DRAWS * counts["followed"] * 0.9, counts
