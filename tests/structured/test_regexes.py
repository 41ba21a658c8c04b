"""Random regular expressions, held to Python's `re`: every output matches, and every match is an output."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadence.structured.compiler import Backends
from tests.helpers.grammars import EOS, allowed, drawn, grammar, smollm2_backends, text_of, tiny_backends

LETTERS = "abc1-"
ATOMS = st.sampled_from(["a", "b", "c", "1", "-", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", "ab", "cab", ""])


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "{1,2}", "{2,}"])
    return st.one_of(
        st.builds("(?:{})".format, st.builds("{}|{}".format, parts, parts)),
        st.builds("{}{}".format, parts, parts),
        st.builds("(?:{}){}".format, parts, counts),
    )


PATTERNS = st.recursive(ATOMS, _larger, max_leaves=8).filter(lambda pattern: _can_be_written(pattern))
OPTIONS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def _can_be_written(pattern: str) -> bool:
    """Something but the empty text matches; a grammar of nothing else is refused."""
    return bool(pattern) and any(re.fullmatch(pattern, text) for text in _short_texts() if text)


@cache
def _short_texts() -> list[str]:
    texts = [""]
    for _ in range(4):
        texts += [text + letter for text in texts[-(5**4) :] for letter in LETTERS]
    return list(dict.fromkeys(texts))


def _tokenised(text: str, backends: Backends, draw: random.Random) -> list[int]:
    """In one of the ways there are."""
    pieces, tokens, at = backends.vocabulary.pieces, [], 0
    while at < len(text):
        fitting = [token for token, piece in enumerate(pieces) if piece and text[at:].encode().startswith(piece)]
        token = draw.choice(fitting)
        tokens.append(token)
        at += len(pieces[token])
    return tokens


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@given(pattern=PATTERNS, data=st.data())
@OPTIONS
def test_a_small_vocabulary(backend: str, pattern: str, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.text(LETTERS, min_size=2, max_size=3), max_size=6))
    backends = tiny_backends([letter.encode() for letter in LETTERS] + [piece.encode() for piece in pieces])
    found = grammar("regex", pattern, backends, backend)
    for seed in range(3):
        tokens, finished = drawn(found, seed, most=40)
        output = text_of(tokens, backends.vocabulary).decode()
        assert not finished or re.fullmatch(pattern, output), output
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    for text in draw.sample(_short_texts(), 30):
        matcher = found.matcher()
        accepted = all(matcher.accept(token) for token in _tokenised(text, backends, draw)) and matcher.accept(EOS)
        assert accepted == bool(re.fullmatch(pattern, text)), text


def test_what_is_allowed_is_what_is_accepted() -> None:
    """Token by token, but for forced text, of which only the tokenizer's way to write it is allowed."""
    backends = tiny_backends([b"ab", b"ba", b"aab"])
    for pattern in ("(ab)+", "a*b", "(a|b){3}", "aab|ba"):
        found = grammar("regex", pattern, backends, "xgrammar")
        for seed in range(5):
            tokens, _ = drawn(found, seed, most=10)
            matcher = found.matcher()
            for token in tokens:
                able = [one for one in range(found.vocab_size) if found_accepts(matcher, one)]
                choice = allowed(matcher, found.vocab_size)
                assert choice == able or (len(choice) == 1 and choice[0] in able and len(matcher.forced_text()) > 1)
                matcher.accept(token)


def found_accepts(matcher, token: int) -> bool:  # type: ignore[no-untyped-def]
    accepted = bool(matcher.accept(token))
    matcher.rollback(int(accepted))
    return accepted


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@given(pattern=PATTERNS, seed=st.integers(0, 2**32))
@settings(OPTIONS, max_examples=12)
def test_a_real_vocabulary(backend: str, pattern: str, seed: int) -> None:
    backends = smollm2_backends()
    found = grammar("regex", f"(?:{pattern})x", backends, backend)
    tokens, finished = drawn(found, seed, most=30)
    output = text_of(tokens, backends.vocabulary).decode("utf-8", "replace")
    assert not finished or re.fullmatch(f"(?:{pattern})x", output, re.DOTALL | re.ASCII), output
