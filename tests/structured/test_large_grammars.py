"""Large schemas and structural tags of many functions: they are followed, and memory for many of them has an end."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import psutil
import pytest

from cadence.core.failure import Failure
from cadence.core.grammar import GrammarBackend
from cadence.structured.grammar import Grammar
from cadence.structured.limits import GrammarLimits
from tests.helpers.grammars import outcome_of, smollm2_backends
from tests.structured.test_service import LIMITS, Open, open_service, spec

__all__ = ["open_service"]  # a fixture

MB = 2**20


def schema(name: str, count: int) -> dict[str, Any]:
    kinds = ({"type": "string"}, {"type": "array", "items": {"type": "number"}})
    properties = {f"{name}_{number}": kinds[number % 2] for number in range(count)}
    return {"type": "object", "properties": properties, "required": [*properties]}


def functions(count: int, parameters: int, name: str = "f") -> str:
    tags = [
        {
            "type": "tag",
            "begin": f"<function={name}{number}>",
            "content": {"type": "json_schema", "json_schema": schema(f"p{number}", parameters)},
            "end": "</function>",
        }
        for number in range(count)
    ]
    format = {"type": "triggered_tags", "triggers": ["<function="], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": format})


def follows(found: Grammar, text: str) -> bool:
    matcher = found.matcher()
    return all(map(matcher.accept, smollm2_backends()._encode(text.encode())))


def test_a_structural_tag_of_many_functions_is_followed(open_service: Open) -> None:
    """xgrammar takes 1.5 GiB for it, more than there is."""
    found = outcome_of(open_service().request(spec("structural_tag", functions(32, 4))))
    assert isinstance(found, Grammar) and found.backend == GrammarBackend.LLGUIDANCE
    call = '<function=f7>{"p7_0": "a", "p7_1": [1, 2.5], "p7_2": "", "p7_3": []}</function>'
    assert follows(found, f"So: {call} and {call} it is.")
    for wrong in (call.replace("f7", "f32"), call.replace("p7_3", "p8_3"), call.replace('"a"', "1")):
        assert not follows(found, f"So: {wrong}")


def test_what_takes_xgrammar_too_much_memory_is_not_left_to_it(open_service: Open) -> None:
    """Where the backend is open. Compiled, the schema has 3 MiB there, and 2 KiB here."""
    service, text = open_service(dataclasses.replace(LIMITS, compiled_bytes=MB)), json.dumps(schema("p", 38))
    found = outcome_of(service.request(spec("json_schema", text)))
    assert isinstance(found, Grammar) and found.backend == GrammarBackend.LLGUIDANCE
    forced = outcome_of(service.request(spec("json_schema", text, "xgrammar")))
    assert isinstance(forced, Failure) and "more than 1 MiB" in forced.message


def test_structural_tags_that_are_ever_new_stay_within_the_cache(open_service: Open) -> None:
    service = open_service(dataclasses.replace(LIMITS, cache_bytes=MB // 16))
    for number in range(8):
        found = outcome_of(service.request(spec("structural_tag", functions(1, 2, f"h{number}_"), "llguidance")))
        assert isinstance(found, Grammar) and found.num_bytes > len(functions(1, 2))
        kept = [outcome.num_bytes for outcome in service._cache._kept.values() if isinstance(outcome, Grammar)]
        assert service._cache.num_bytes == sum(kept) <= MB // 16
    assert 1 < len(kept) < 8


@pytest.mark.wide
@pytest.mark.slow
def test_many_structural_tags_take_no_more_memory_than_is_kept(open_service: Open) -> None:
    """Each takes 1.4 MiB and more. The engine's process reads them, and forgets those that were used least recently."""
    service = open_service(GrammarLimits(seconds=200.0, cache_bytes=6 * MB))
    sizes = []
    for number in range(28):
        found = outcome_of(service.request(spec("structural_tag", functions(4, 4, f"g{number}_"), "xgrammar")))
        assert isinstance(found, Grammar) and found.compiled.num_bytes > MB
        sizes.append(psutil.Process().memory_info().rss)
    assert service._cache.num_bytes <= 6 * MB and len(service._cache) < 6
    assert sizes[-1] - sizes[7] < 8 * MB, [size // MB for size in sizes]
