"""Words and their times, held to transformers' functions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.whisper.generation_whisper import _dynamic_time_warping
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from cadence.audio.alignment import token_times, warp
from cadence.audio.words import WordTokens, group_words, word_times

WORDS = [" a", " the", "the", "ing", "'s", " l'", "eau", " 漢", "字", "é"]
MARKS = [" “", "”", ' "', '"', ".", ",", " -", "-", "!", " (", ")", " ¿", "?"]
BYTES = [piece.encode() for piece in (*WORDS, *MARKS)] + [b"\xe6", b"\xbc", b"\xa2", b" \xf0", b"\xff"]


def decode(tokens: Sequence[int]) -> str:
    return b"".join(BYTES[token] for token in tokens).decode(errors="replace")


@pytest.mark.parametrize(("tokens", "positions"), [(1, 1), (1, 9), (9, 1), (5, 40), (40, 60), (30, 20)])
@pytest.mark.parametrize("levels", [0, 3])
def test_paths_of_transformers(tokens: int, positions: int, levels: int) -> None:
    """With few levels there are many equal sums."""
    random = np.random.default_rng(tokens)
    costs_np = (
        random.integers(0, levels, (tokens, positions)) if levels else random.standard_normal((tokens, positions))
    )
    expected = _dynamic_time_warping(costs_np.astype(np.float64))
    for found_np, expected_np in zip(warp(costs_np.astype(np.float64)), expected, strict=True):
        np.testing.assert_array_equal(found_np, expected_np)


def test_tokens_begin_where_their_heads_look() -> None:
    """Token i is said from position 10 i to 10 (i + 1)."""
    matrix_np = np.full((5, 50), -0.5, np.float32)
    for token in range(5):
        matrix_np[token, 10 * token : 10 * (token + 1)] = 2.0
    np.testing.assert_allclose(token_times(matrix_np), np.arange(5) * 0.2, atol=0.021)
    assert token_times(matrix_np[:0]).shape == (0,)
    assert np.isfinite(token_times(np.zeros((4, 6), np.float32))).all()


@given(
    tokens=st.lists(st.integers(0, len(BYTES) - 1), max_size=12),
    language=st.sampled_from([("en", "english"), ("zh", "chinese")]),
)
def test_words_of_transformers(tokens: list[int], language: tuple[str, str]) -> None:
    code, name = language
    tokenizer = SimpleNamespace(decode=lambda ids, **_: decode(ids), eos_token_id=1000, language=None)
    words, _, places = _combine_tokens_into_words(tokenizer, tokens, name)
    assert group_words(tokens, code, decode) == [WordTokens(*each) for each in zip(words, places, strict=True)]


def test_words_end_where_the_next_begins() -> None:
    words = [WordTokens(" a", [0]), WordTokens(" bc", [1, 2]), WordTokens(" d", [3])]
    found = word_times(words, [0.0, 0.5, 0.7, 1.5], end=1.2)
    assert [(each.word, each.start, each.end) for each in found] == [
        (" a", 0.0, 0.5),
        (" bc", 0.5, 1.5),
        (" d", 1.5, 1.5),
    ]
    assert word_times([], [], 1.0) == []
