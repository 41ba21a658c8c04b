"""What a request sees of its grammar: which tokens may come next, taken back and repeated at will."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from cadence.structured.grammar import Grammar, MaskArray, Matcher, only_token
from tests.helpers.grammars import (
    EOS,
    allowed,
    drawn,
    grammar,
    mask_of,
    smollm2_backends,
    text_of,
    tiny_backends,
)

BACKENDS = ("xgrammar", "llguidance")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_CONTENT = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call="],
        "tags": [{"begin": "<call=add>", "content": _CONTENT, "end": "</call>"}],
    },
}
# kind, text, what an output must match
KINDS = [
    ("regex", r"a/b\\[/]\w", r"a/b\\/[A-Za-z0-9_]"),
    ("regex", r"[a-c]{2,4}-\d+", r"[a-c]{2,4}-\d+"),
    ("choice", json.dumps(["yes", "no", "maybe not", 'quo"ted\n', "é/ü"]), 'yes|no|maybe not|quo"ted\n|é/ü'),
    ("ebnf", 'root ::= "(" root ")" | [0-9]', r"\(*\d\)*"),
    ("lark", 'start: "(" start ")" | DIGIT\nDIGIT: /[0-9]/', r"\(*\d\)*"),
]


def _fresh(found: Grammar, tokens: list[int]) -> Matcher:
    matcher = found.matcher()
    assert all(matcher.accept(token) for token in tokens)
    return matcher


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "text", "pattern"), KINDS)
def test_outputs_are_what_was_asked_for(kind: str, text: str, pattern: str, backend: str) -> None:
    backends = smollm2_backends()
    found = grammar(kind, text, backends, backend)
    ended = [tokens for seed in range(20) for tokens, finished in [drawn(found, seed)] if finished]
    assert len(ended) >= 15
    for tokens in ended:
        output = text_of(tokens, backends.vocabulary).decode()
        assert re.fullmatch(pattern, output), output
        assert output.count("(") == output.count(")")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("any_whitespace", [True, False])
def test_json_follows_its_schema(backend: str, any_whitespace: bool) -> None:
    backends = smollm2_backends()
    found = grammar("json_schema", json.dumps(PERSON), backends, backend, any_whitespace=any_whitespace)
    check, ended = Draft202012Validator(PERSON), 0
    for seed in range(12):
        tokens, finished = drawn(found, seed, most=400)
        ended += finished
        if finished:
            output = text_of(tokens, backends.vocabulary).decode()
            check.validate(json.loads(output))
            assert any_whitespace or output == json.dumps(json.loads(output))
    assert ended >= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_json_object_is_one(backend: str) -> None:
    backends = smollm2_backends()
    found = grammar("json_object", "", backends, backend)
    for seed in range(4):
        tokens, finished = drawn(found, seed, most=40, end=0.9)
        assert text_of(tokens, backends.vocabulary).lstrip().startswith(b"{")
        assert not finished or isinstance(json.loads(text_of(tokens, backends.vocabulary)), dict)


@pytest.mark.parametrize("backend", BACKENDS)
def test_structural_tags_constrain_what_is_in_them(backend: str) -> None:
    backends = smollm2_backends()
    found = grammar("structural_tag", json.dumps(TAG), backends, backend)
    encode = backends._encode
    matcher = _fresh(found, encode(b"I will add. <call=add>"))
    inside = {backends.vocabulary.pieces[token].strip()[:1] for token in allowed(matcher, found.vocab_size)}
    assert inside <= {*(bytes([digit]) for digit in b"-0123456789"), b""}
    assert _fresh(found, encode(b"<call=add>12</call> done")).accept(min(found.stop_ids))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_tokens_and_padding_are_never_allowed(backend: str) -> None:
    backends = smollm2_backends()
    vocabulary = backends.vocabulary
    matcher = grammar("regex", r"(.|\n)*", backends, backend).matcher()
    tokens = allowed(matcher, vocabulary.size)
    assert set(tokens) & set(vocabulary.special) == set(vocabulary.stop_ids)  # the empty text may end at once
    assert len(tokens) > 40_000
    assert all(vocabulary.pieces[token] for token in tokens if token not in vocabulary.stop_ids)
    for token in (3, vocabulary.size - 1, vocabulary.size, vocabulary.size + 100, -1):
        assert not matcher.accept(token)
    assert allowed(matcher, vocabulary.size) == tokens


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["regex", "ebnf", "json_schema", "choice"])
def test_what_is_taken_back_leaves_no_trace(kind: str, backend: str) -> None:
    texts = {name: text for name, text, _ in KINDS} | {"json_schema": json.dumps(PERSON)}
    found = grammar(kind, texts[kind], smollm2_backends(), backend)
    for seed in range(6):
        tokens, _ = drawn(found, seed, most=40)
        masks = [mask_of(_fresh(found, tokens[:n]), found.vocab_size) for n in range(len(tokens) + 1)]
        draw, matcher, at = random.Random(seed), found.matcher(), 0
        for _ in range(40):
            back = draw.randint(0, at)
            matcher.rollback(back)
            at -= back
            ahead = draw.randint(0, len(tokens) - at)
            assert all(matcher.accept(token) for token in tokens[at : at + ahead])
            at += ahead
            assert np.array_equal(mask_of(matcher, found.vocab_size), masks[at])
            assert matcher.finished == (at == len(tokens) and tokens[-1] in found.stop_ids)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_tokens_are_those_without_a_choice(backend: str) -> None:
    backends = tiny_backends([b"abc", b"xy", b"bc"])
    found = grammar("regex", "x?abc(xy|yx)", backends, backend)
    matcher = found.matcher()
    for _ in range(30):
        before = mask_of(matcher, found.vocab_size)
        expected: list[int] = []
        forced = matcher.forced()
        assert np.array_equal(mask_of(matcher, found.vocab_size), before)
        while (token := only_token(mask_of(matcher, found.vocab_size))) >= 0 and not matcher.finished:
            assert matcher.accept(token)
            expected.append(token)
        assert forced == expected
        if matcher.finished:
            break
        assert matcher.accept(random.Random(3).choice(allowed(matcher, found.vocab_size)))
    assert matcher.finished


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_finished_text_stays_finished(backend: str) -> None:
    backends = tiny_backends([b"ab"])
    found = grammar("regex", "ab", backends, backend)
    matcher = found.matcher()
    assert not matcher.accept(EOS)
    (ab,) = [token for token, piece in enumerate(backends.vocabulary.pieces) if piece == b"ab"]
    assert matcher.accept(ab) and not matcher.finished
    assert allowed(matcher, found.vocab_size) == [EOS]
    assert matcher.accept(EOS) and matcher.accept(EOS) and matcher.finished
    assert not matcher.accept(ab) and matcher.forced() == []
    assert allowed(matcher, found.vocab_size) == [EOS]
    matcher.rollback(3)
    assert not matcher.finished and matcher.accept(ab) and matcher.accept(EOS) and matcher.finished


@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_text_comes_next(backend: str) -> None:
    backends = smollm2_backends()
    found = grammar("json_schema", json.dumps(PERSON), backends, backend, any_whitespace=False)
    matcher = found.matcher()
    assert matcher.forced_text() == b'{"name": "'
    assert matcher.accept(backends._encode(b'{"')[0])
    assert matcher.forced_text() == b'name": "'


@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_text_is_written_as_the_tokenizer_writes_it(backend: str) -> None:
    """But for its last token, which what follows may be a part of. So most of it is forced tokens."""
    backends = smollm2_backends()
    names = {
        name: {"type": "integer"} for name in ("temperature_in_celsius", "wind", "a_rather_long_name_of_a_property")
    }
    schema = {"type": "object", "properties": names, "required": list(names), "additionalProperties": False}
    found = grammar("json_schema", json.dumps(schema), backends, backend, any_whitespace=False)
    matcher, tokens, forced = found.matcher(), list[int](), 0
    while not matcher.finished:
        if some := matcher.forced():
            expected = backends._encode(matcher.forced_text())[: len(some)]
            assert some[: len(expected)] == expected
            forced += len(some)
        choice = some or [next(t for t in allowed(matcher, found.vocab_size) if t not in found.stop_ids)]
        choice = choice if not matcher.accept(min(found.stop_ids)) else []
        tokens += choice
        assert all(matcher.accept(token) for token in choice)
        if backends.vocabulary.pieces[tokens[-1]].isdigit():  # the number ends
            end = next(
                t for t in allowed(matcher, found.vocab_size) if backends.vocabulary.pieces[t][:1] in (b",", b"}")
            )
            tokens.append(end)
            assert matcher.accept(end)
    assert forced >= 0.6 * len(tokens), (forced, len(tokens))
    assert list(json.loads(text_of(tokens, backends.vocabulary))) == list(names)


class Breaking:
    """A position that raises from some token on."""

    complete, error = False, ""

    def __init__(self) -> None:
        self.left = 2

    def accept(self, token: int) -> bool:
        self._count()
        return True

    def rollback(self, count: int) -> None: ...

    def fill(self, mask_np: MaskArray) -> None:
        self._count()
        mask_np[:] = -1

    def forced_text(self) -> bytes:
        self._count()
        return b""

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise UnicodeDecodeError("utf-8", b"\x9f", 0, 1, "invalid start byte")


@pytest.mark.parametrize("then", ["fill", "accept", "ahead"])
def test_what_a_backend_raises_ends_one_output(then: str) -> None:
    compiled: Any = None
    matcher = Matcher(Grammar("", "", compiled, 40, frozenset({1})), Breaking())
    mask_np = np.zeros(2, np.int32)
    matcher.fill(mask_np)
    assert mask_np.all() and matcher.accept(5) and not matcher.error
    calls = {
        "fill": lambda: matcher.fill(mask_np),
        "accept": lambda: matcher.accept(5),
        "ahead": lambda: matcher.ahead(4),
    }
    assert calls[then]() in (None, False, [])
    matcher.fill(mask_np)
    assert not mask_np.any() and "UnicodeDecodeError" in matcher.error
