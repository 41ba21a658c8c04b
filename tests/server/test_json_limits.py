"""JSON is counted before it is parsed: exactly, whatever strings hold, and quickly, whatever the body is made of."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http import json_limits
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.json_limits import MEMBER_SHARE, JsonLimits, check_json, outside_strings
from cadence.entrypoints.server.protocol.json_text import decode_arguments, decode_json

LARGE = 2**24
TEXTS = st.text(st.sampled_from('[]{},:"\\/ax1é\n\x00😀'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def count(value: Any) -> tuple[int, int, int]:
    """Values, members (objects, arrays and names) and depth of parsed JSON."""
    if not isinstance(value, list | dict):
        return 1, 0, 0
    inner = [count(item) for item in (value.values() if isinstance(value, dict) else value)]
    values, members = sum(one[0] for one in inner), sum(one[1] for one in inner)
    depth = 1 + max((one[2] for one in inner), default=0)
    return values + 1, members + 1 + (len(value) if isinstance(value, dict) else 0), depth


def passes(body: bytes, depth: int, values: int) -> bool:
    try:
        check_json(body, JsonLimits(depth, values))
    except ApiError:
        return False
    return True


@given(VALUES, st.booleans(), st.sampled_from([1, 2, 3, 5, 2**18]))
def test_counts_are_those_of_the_parsed_value(value: Any, escaped: bool, piece: int) -> None:
    """Up to one value: `[]` is counted as if something could be in it."""
    body = json.dumps(value, ensure_ascii=escaped).encode()
    values, members, depth = count(json.loads(body))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "_PIECE", piece)
        assert b"".join(outside_strings(body, 100)).count(b"[") == body.decode().count("[") - _in_strings(value, "[")
        plenty = 10**6
        assert passes(body, max(depth, 1), plenty)
        assert depth < 2 or not passes(body, depth - 1, plenty)
        empties = members  # an empty one counts for one too many, and so does each of the names' values at most
        assert passes(body, 64, max(values + empties, members * MEMBER_SHARE))
        assert values < 2 or not passes(body, 64, values - 1)
        assert members < 2 or not passes(body, 64, (members - 1) * MEMBER_SHARE)


def _in_strings(value: Any, mark: str) -> int:
    if isinstance(value, str):
        return value.count(mark)
    if isinstance(value, dict):
        return sum(key.count(mark) + _in_strings(item, mark) for key, item in value.items())
    return sum(_in_strings(item, mark) for item in value) if isinstance(value, list) else 0


def test_depth_is_not_fooled_by_strings() -> None:
    plenty = 10**6
    assert passes(rb'["\"[[[[[[", "]]]]\\", [1], [2], [3], {"a]": "{{{{{{"}]', 2, plenty)
    assert not passes(rb'["]]]]", [[1]], "x"]', 2, plenty)


HOSTILE = {
    "brackets": b"[" * LARGE,
    "pairs": b"[" + b"[]," * (LARGE // 3),
    "quotes": b'"' * LARGE,
    "strings": b"[" + b'"",' * (LARGE // 3),
    "backslashes": b'"' + b"\\" * (LARGE - 2) + b'"',
    "escaped quotes": b'"' + b'\\"' * (LARGE // 2 - 1) + b'"',
    "brackets in a string": b'"' + b"[" * LARGE + b'"',
    "commas": b"," * LARGE,
    "spaces": b" " * LARGE,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_counting_is_quick_for_any_body(kind: str) -> None:
    """A hundredth of this on an ordinary core; a loop over matches of an expression takes up to 14 s."""
    began = time.thread_time()
    passes(HOSTILE[kind], 64, 500_000)
    assert time.thread_time() - began < 10


def test_what_the_default_limits_pass_is_parsed_quickly() -> None:
    """The parser holds everyone up while it runs: the limits are what bounds it. A hundred times what an ordinary core
    takes; the collector is off because it would walk what the whole test run has made."""
    limits = JsonLimits(64, 500_000)
    worst = {
        "numbers": b"[" + b",".join([b"123456"] * (limits.max_values - 2)) + b"]",
        "lists": b"[" + b",".join([b"[]"] * (limits.max_members - 2)) + b"]",
        "names": b"{" + b",".join(b'"%d":1' % i for i in range(limits.max_members - 2)) + b"}",
        "text": b'"' + b"\\n" * (LARGE // 2 - 2) + b'"',
    }
    gc.disable()
    try:
        for name, body in worst.items():
            check_json(body, limits)
            began = time.thread_time()
            decode_json(body)
            assert time.thread_time() - began < 20, name
    finally:
        gc.enable()


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\\ud83d"', r'"\u00e4 \uD83D\uDE00"', '"\U0001f600"'])
def test_whole_characters_in_escapes(text: str) -> None:
    assert decode_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "raw", [rb'"\\\ud83d"', rb'"\ude00"', rb'{"\ud83d": 1}', b'"\xff"', b'"\xed\xa0\x80"', b'{"\xff": 1}', b"[" * 5000]
)
def test_halves_of_characters_are_no_json(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decode_json(raw)
    assert caught.value.status == 400 and caught.value.code == "invalid_json"
    assert "codec" not in str(caught.value) and "recursion" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 5000])
def test_numbers_nobody_can_hold_are_named(number: str) -> None:
    for raw, field in (
        (f'{{"a": 1, "top": {number}}}', "top"),
        (f'{{"m": [{{"b": "x"}}, {{"c": {number}}}]}}', "m[1].c"),
    ):
        with pytest.raises(ApiError, match="finite number") as caught:
            decode_json(raw.encode())
        assert caught.value.param == field and caught.value.status == 400


def test_a_large_body_is_not_searched_for_such_a_number() -> None:
    """That would be one long call, which lets nobody else run: the parser's own words name the byte."""
    raw = b'{"a": [' + b"1," * 200_000 + b"NaN]}"
    with pytest.raises(ApiError, match=r"byte 400007") as caught:
        decode_json(raw)
    assert caught.value.param is None and caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "arguments",
    ["[" * 2000 + "]" * 2000, f"[{'1,' * 200_000}1]", '"' + "x" * 2**20 + '"', "{"],
    ids=["deep", "many", "long", "half"],
)
def test_arguments_inside_of_strings_are_bounded_too(arguments: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_arguments(arguments, "input[0].arguments")
    assert caught.value.field == "input[0].arguments"
