"""Streamed text equals decoded text, and never shows half a character."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cadence.text.detokenizer import (
    REPLACEMENT,
    IncrementalDetokenizer,
    NullDetokenizer,
    PieceDetokenizer,
    WindowDetokenizer,
)
from cadence.text.tokenizer import SpecialTokens, Tokenizer
from tests.helpers import tiny_tokenizers
from tests.helpers.wide import examples

SPECIAL = SpecialTokens(bos_token="<s>", eos_token="</s>", unk_token="<unk>", bos_id=1, eos_id=2)
TOKENIZERS = {kind: Tokenizer(make(), SPECIAL) for kind, make in tiny_tokenizers.KINDS.items()}
BYTE_KINDS = ["byte_level", "byte_fallback", "byte_fallback_no_prefix"]  # can write any text
PIECE_KINDS = [*BYTE_KINDS, "metaspace"]

# Whole texts whose characters spread over several tokens, and plain words between them.
FRAGMENTS = st.sampled_from([
    "the", " dog", "  ", " ", "\n", "🦊", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "東京", "e\u0301", "नमस्ते",
    "\U0001f1eb\U0001f1f7", "<s>", "</s>", tiny_tokenizers.CONTROL, tiny_tokenizers.PLAIN_ADDED, "▁", "Ġ", ".", "é",
])  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT)
TEXT = st.lists(FRAGMENTS | st.text(CHARACTERS, max_size=4))


def stream(detokenizer: Any, ids: list[int], sizes: list[int]) -> list[str]:
    """Deltas of `ids` handed over in groups of the given sizes, the last of them from `flush`."""
    deltas = []
    for size in sizes:
        group, ids = ids[:size], ids[size:]
        deltas.append(detokenizer.append(group))
    return [*deltas, detokenizer.append(ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", BYTE_KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_text_in_context(kind: str, skip: bool) -> None:
    """For any text, cut anywhere into prompt and output, in groups of any size."""
    tokenizer = TOKENIZERS[kind]

    @settings(max_examples=150, deadline=None)
    @given(parts=TEXT, cut=st.floats(0, 1), sizes=st.lists(st.integers(0, 3), max_size=60))
    def check(parts: list[str], cut: float, sizes: list[int]) -> None:
        ids = tokenizer.encode("".join(parts))
        prompt, output = ids[: int(cut * len(ids))], ids[int(cut * len(ids)) :]
        deltas = stream(IncrementalDetokenizer(tokenizer, prompt, skip), output, sizes)
        whole = tokenizer.decode(ids, skip)
        befores = [tokenizer.decode(prompt[:n], skip).rstrip(REPLACEMENT) for n in range(len(prompt) + 1)]
        before = max((text for text in befores if REPLACEMENT not in text), key=len)  # less a character only begun
        assert "".join(deltas) == (whole.removeprefix(before) if output else "")
        assert not any(REPLACEMENT in delta for delta in deltas)

    check()


@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
@pytest.mark.parametrize("skip", [True, False])
def test_any_tokens_at_all(kind: str, skip: bool) -> None:
    """What a random model writes: bad bytes, special tokens, ids past the vocabulary. Nothing is lost or added."""
    tokenizer = TOKENIZERS[kind]

    @settings(max_examples=150, deadline=None)
    @given(ids=st.lists(st.integers(0, len(tokenizer) + 5), max_size=30), sizes=st.lists(st.integers(0, 3)))
    def check(ids: list[int], sizes: list[int]) -> None:
        deltas = stream(IncrementalDetokenizer(tokenizer, [], skip), ids, sizes)
        assert "".join(deltas) == tokenizer.decode(ids, skip)

    check()


@examples(60, 500)
@given(data=st.lists(st.integers(0, 255), min_size=1, max_size=12), cut=st.integers(0, 12))
@example(data=[0xED, 0xA0], cut=2)  # half a surrogate: held back, then two characters
@example(data=[0xED, 0xA0, 0x80], cut=2)
def test_any_bytes_after_any_bytes(data: list[int], cut: int) -> None:
    """Prompt and output may be cut inside a character, and may be no UTF-8 at all."""
    tokenizer = TOKENIZERS["byte_level"]
    char_of = {byte: char for char, byte in _alphabet().items()}
    ids = [tokenizer.backend.token_to_id(char_of[byte]) for byte in data]
    deltas = stream(IncrementalDetokenizer(tokenizer, ids[:cut]), ids[cut:], [1] * len(ids))
    whole, before = tokenizer.decode(ids), tokenizer.decode(ids[:cut])
    completed = before.endswith(REPLACEMENT) and not whole.startswith(before)
    assert "".join(deltas) == whole.removeprefix(before[:-1] if completed else before)


def _alphabet() -> dict[str, int]:
    from cadence.text.pieces import byte_level_alphabet

    return byte_level_alphabet()


def test_byte_fallback_keeps_good_characters_beside_bad_bytes() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = tokenizer.convert_tokens_to_ids(["▁", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "<0xE2>", "<0x82>", "a"])
    assert isinstance(ids, list)
    deltas = [IncrementalDetokenizer(tokenizer, ids[:1]).append(ids[1:])]
    assert deltas == ["€\ufffd\ufffda"]


@pytest.mark.parametrize("kind", PIECE_KINDS)
def test_leading_space_belongs_to_the_context(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    prompt = tokenizer.encode("the", add_special_tokens=False)
    prefixed = kind in ("byte_fallback", "metaspace")  # encoding puts a space before any text
    output = tokenizer.encode("dog" if prefixed else " dog", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer, prompt).append(output) == " dog"
    alone = tokenizer.decode(output)
    assert IncrementalDetokenizer(tokenizer, []).append(output) == alone
    assert IncrementalDetokenizer(tokenizer, [1]).append(output) == tokenizer.decode([1, *output])


def test_a_whole_character_is_not_held_back() -> None:
    for kind in BYTE_KINDS:
        tokenizer = TOKENIZERS[kind]
        prompt = tokenizer.encode("the")
        ids = tokenizer.encode("the🦊🦊")[len(prompt) :]
        detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        deltas = [detokenizer.append([token_id]) for token_id in ids]
        assert [delta for delta in deltas if delta] == ["🦊", "🦊"]
        assert detokenizer.flush() == ""


def test_flush_shows_what_is_left() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("ok 🦊", add_special_tokens=False)[:-1]
    detokenizer = IncrementalDetokenizer(tokenizer, [1])
    assert detokenizer.append(ids) == "ok "
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


def test_every_kind_takes_the_quick_way_but_wordpiece() -> None:
    for kind, tokenizer in TOKENIZERS.items():
        method = IncrementalDetokenizer(tokenizer, [])._method
        assert isinstance(method, WindowDetokenizer if kind == "wordpiece" else PieceDetokenizer)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(["the ", "dog", " sequence", "ing ", "foxes, ", "12 "]), min_size=1))
def test_a_window_of_tokens_where_tokens_depend_on_each_other(parts: list[str]) -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    ids = tokenizer.encode("".join(parts))
    for cut in (0, len(ids) // 2):
        deltas = stream(IncrementalDetokenizer(tokenizer, ids[:cut]), ids[cut:], [1] * len(ids))
        assert "".join(deltas) == tokenizer.decode(ids)[len(tokenizer.decode(ids[:cut])) :]


@settings(max_examples=60, deadline=None)
@given(parts=TEXT)
def test_the_window_is_right_for_bytes_too(parts: list[str]) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("".join(parts))
    deltas = stream(WindowDetokenizer(tokenizer, [], True, True), ids, [1] * len(ids))
    assert "".join(deltas) == tokenizer.decode(ids)
    assert not any(REPLACEMENT in delta for delta in deltas)


def test_the_window_gives_up_on_bad_bytes() -> None:
    """Bytes that never become a character are shown after a while: work per token stays bounded."""
    tokenizer = TOKENIZERS["byte_level"]
    bad = tokenizer.backend.token_to_id("ÿ")
    detokenizer = WindowDetokenizer(tokenizer, [], True, True)
    assert "".join(detokenizer.append([bad]) for _ in range(100)).count(REPLACEMENT) > 80
    assert len(detokenizer._ids) < 20


@pytest.mark.parametrize(("spaces", "expected"), [(True, " <|turn|> <|turn|>"), (False, " <|turn|><|turn|>")])
def test_spaces_between_special_tokens(spaces: bool, expected: str) -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    turn = tokenizer.convert_tokens_to_ids(tiny_tokenizers.CONTROL)
    detokenizer = IncrementalDetokenizer(tokenizer, tokenizer.encode("the"), False, spaces)
    assert detokenizer.append([turn, turn]) == expected  # type: ignore[list-item]


def test_no_detokenizer() -> None:
    assert (NullDetokenizer().append([1, 2]), NullDetokenizer().flush()) == ("", "")


def test_cost_of_a_token_does_not_grow() -> None:
    """Counted in the least CPU time of several runs, so that a busy machine does not matter."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode(" ".join(tiny_tokenizers.CORPUS) * 4)[:2000]

    def seconds(detokenizer: Any) -> float:
        start = time.thread_time()
        for token_id in ids:
            detokenizer.append([token_id])
        return time.thread_time() - start

    early, late = [], []
    for _ in range(5):
        detokenizer = IncrementalDetokenizer(tokenizer, [1])
        early.append(seconds(detokenizer))
        detokenizer.append(ids * 20)
        late.append(seconds(detokenizer))
    assert min(late) < 3 * min(early)
