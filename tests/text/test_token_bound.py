"""No text has fewer tokens than the bound says, whatever it is; and the bound is of use where there is one."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from cadence.core.errors import InvalidRequestError
from cadence.text.load import load_gguf_tokenizer
from cadence.text.pieces import byte_level_alphabet
from cadence.text.special_tokens import SpecialTokens
from cadence.text.token_bound import TokenBound
from cadence.text.tokenizer import Tokenizer as Whole
from tests.helpers import tiny_tokenizers
from tests.helpers.smollm2 import smollm2_path


def with_normalizer(*steps: normalizers.Normalizer) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        tokenizer = tiny_tokenizers.byte_level()
        tokenizer.normalizer = normalizers.Sequence(list(steps))
        return tokenizer

    return make


def without_bytes() -> Tokenizer:
    """As SmolLM2: some bytes are no token, and leave none behind."""
    tokenizer = tiny_tokenizers.byte_level()
    lost = {char for char, byte in byte_level_alphabet().items() if byte in (4, 0xC3, ord("z"))}
    state = tokenizer.to_str()
    import json

    tree = json.loads(state)
    tree["model"]["merges"] = [pair for pair in tree["model"]["merges"] if not lost & set("".join(pair))]
    kept = [piece for piece in tree["model"]["vocab"] if not lost & set(piece)]
    tree["model"]["vocab"] = {piece: index for index, piece in enumerate(kept)}
    tree["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(tree))


def swallowing() -> Tokenizer:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.add_special_tokens([AddedToken("<end>", rstrip=True, normalized=False)])
    return tokenizer


def dropping() -> Tokenizer:
    tokenizer = tiny_tokenizers.byte_level()
    split = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


BOUNDED = {
    "byte_level": tiny_tokenizers.byte_level,
    "byte_fallback": tiny_tokenizers.byte_fallback,
    "byte_fallback_no_prefix": lambda: tiny_tokenizers.byte_fallback(prefix_space=False),
    "nfc": with_normalizer(normalizers.NFC()),
    "nfd": with_normalizer(normalizers.NFD()),
    "shorter words": with_normalizer(normalizers.Replace("the", "e"), normalizers.NFC()),
    "without bytes": without_bytes,
    "smollm2": lambda: load_gguf_tokenizer(smollm2_path()).backend,
}
UNBOUNDED = {
    "metaspace": tiny_tokenizers.metaspace,
    "wordpiece": tiny_tokenizers.wordpiece,
    "swallowing": swallowing,
    "dropping": dropping,
    "lower case": with_normalizer(normalizers.Lowercase()),
    "stripped": with_normalizer(normalizers.Strip()),
    "deleted": with_normalizer(normalizers.Replace("a", "")),
    "by pattern": with_normalizer(normalizers.Replace(Regex("a+"), "a")),
}


@cache
def made(name: str) -> tuple[Tokenizer, TokenBound]:
    backend = (BOUNDED | UNBOUNDED)[name]()
    return backend, TokenBound.of(backend)


def longest_pieces(name: str) -> list[str]:
    backend, _ = made(name)
    longest = sorted(backend.get_vocab(), key=len, reverse=True)[:3]
    return [
        backend.decode([index], skip_special_tokens=False) for piece in longest if (index := backend.token_to_id(piece))
    ]


def texts(name: str) -> st.SearchStrategy[str]:
    shrinking = [
        "\u212a",
        "\u1fef",
        "\u1fbe\u0308\u0301",
        "\u1112\u1161\u11ab",
        "the",
        " " * 9,
        "<end>",
        "\x04",
        "é",
        "z",
    ]
    parts = st.sampled_from([*longest_pieces(name), *shrinking]) | st.text(st.characters(exclude_categories=["Cs"]))
    return st.lists(st.tuples(parts, st.integers(1, 30)), max_size=6).map(
        lambda many: "".join(part * count for part, count in many)
    )


@pytest.mark.parametrize("name", [*BOUNDED, *UNBOUNDED])
def test_no_text_has_fewer_tokens(name: str) -> None:
    backend, bound = made(name)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(texts(name))
    def check(text: str) -> None:
        assert len(backend.encode(text, add_special_tokens=False).ids) >= bound.least_tokens(text)

    check()


@pytest.mark.parametrize("name", BOUNDED)
def test_a_long_text_has_a_bound(name: str) -> None:
    _, bound = made(name)
    assert math.isfinite(bound.bytes_per_token)
    assert bound.least_tokens("word " * 100_000) > 1000
    assert bound.least_tokens("word " * 1_000_000, enough=50) >= 50


@pytest.mark.parametrize("name", UNBOUNDED)
def test_where_text_may_vanish_there_is_no_bound(name: str) -> None:
    _, bound = made(name)
    assert bound.least_tokens("word " * 100_000) == 0


def test_normal_forms_shrink_text_no_further_than_is_assumed() -> None:
    """Each character of a composed text stands for characters of its decomposition, each written as long as can be."""
    decomposed = {
        char: unicodedata.normalize("NFD", char)
        for char in map(chr, range(0x110000))
        if not unicodedata.is_normalized("NFD", char)
    }
    longest: dict[str, int] = {}  # bytes of the longest way to write a character, where it is not the only one
    for char, parts in decomposed.items():
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, len(parts.encode())), len(char.encode()))

    def shrinkage(char: str) -> float:
        parts = decomposed.get(char, char)
        return sum(longest.get(part, len(part.encode())) for part in parts) / len(char.encode())

    composed = [char for char in decomposed if unicodedata.is_normalized("NFC", char)]
    assert max(map(shrinkage, longest)) == 3.0
    assert max(map(shrinkage, composed)) == 3.5


def test_the_error_names_the_field_the_limit_and_the_least_number_of_tokens() -> None:
    whole = Whole(tiny_tokenizers.byte_level(), SpecialTokens())
    least = whole.bound.least_tokens("a" * 4000)
    whole.check_fits("a" * 4000, least + 1, "prompt")
    with pytest.raises(
        InvalidRequestError, match=rf"prompt has 4000 bytes.* at least {least} tokens.* at most {least - 1}"
    ):
        whole.check_fits("a" * 4000, least, "prompt")
