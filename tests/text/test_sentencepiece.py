"""Models that carry SentencePiece files alone: the ids and texts of transformers, on odd strings too."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import TokenizerError
from cadence.text.hf_directory import load_tokenizer
from cadence.text.marian import MarianTokenizer
from cadence.text.sentencepiece.model_file import read_model_file
from cadence.text.tokenizer import Tokenizer
from tests.helpers.tiny_sentencepiece import save_marian, save_t5, trained
from tests.helpers.tiny_tokenizers import CORPUS

ALPHABET = [chr(code) for code in range(32, 0x250)] + list("  \t\n▁，。日本語привет안녕☃😀ﬀﬃ½¾①Ⅳ™ªº")
MARKS = [chr(code) for code in range(0x300, 0x340)] + ["\u200d", "\ufe0f"]
WORDS = ["The quick brown fox ", "sequence of tokens", " naïve  café ", "12 monkeys", "le renard", "東京は"]
ODD = [
    "",
    "   ",
    " a  b\t\nc ",
    "</s> a<pad>b <unk>c",
    ">>fra<< Hello",
    ">>fra<<",
    ">>fr",
    "the >>fra<< fox",
    "é e\u0301 ﬁn ½ ① Å",
    "☃☃ ☃",
    "\u0000\u200b\ufeff x\u00a0y",
    "👨‍👩‍👧 🇫🇷",
    "a" * 300,
    "▁▁ a",
    "\u1100\u1161\u11a8 각",
]


def odd_strings(letters: list[str]) -> list[str]:
    random_ = random.Random(7)
    drawn = [random_.choices(letters, k=random_.randint(1, 24)) for _ in range(300)]
    mixed = [random_.choices(WORDS, k=2) + random_.choices(letters, k=4) for _ in range(200)]
    return [*ODD, *("".join(part) for part in drawn), *("".join(part) for part in mixed)]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_marian(tmp_path_factory.mktemp("marian"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("t5"))


def oracle(name: str, directory: Path) -> Any:
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, name).from_pretrained(directory)


def test_marian_reads_a_text_as_transformers_does(marian: Path) -> None:
    own, other = load_tokenizer(marian), oracle("MarianTokenizer", marian)
    for text in odd_strings(ALPHABET + MARKS):
        assert own.encode(text) == other(text)["input_ids"], text
        assert own.encode(text, add_special_tokens=False) == other(text, add_special_tokens=False)["input_ids"], text


def test_marian_writes_ids_as_transformers_does(marian: Path) -> None:
    own, other = load_tokenizer(marian), oracle("MarianTokenizer", marian)
    random_ = random.Random(3)
    for _ in range(200):
        ids = random_.choices(range(len(other)), k=8)
        assert own.decode(ids).strip() == other.decode(ids, skip_special_tokens=True), ids
    assert (own.eos_token_id, own.pad_token_id, own.unk_token_id) == (
        other.eos_token_id,
        other.pad_token_id,
        other.unk_token_id,
    )


def test_marian_streams_the_text_it_decodes(marian: Path) -> None:
    own = load_tokenizer(marian)
    ids = random.Random(5).choices(range(len(own)), k=40)
    stream = own.detokenizer([], skip_special_tokens=True, spaces_between_special_tokens=True)
    parts = [stream.append([token_id]) for token_id in ids] + [stream.flush()]
    assert "".join(parts) == own.decode(ids)


def test_t5_reads_and_writes_as_transformers_does(t5: Path) -> None:
    own, other = load_tokenizer(t5), oracle("T5Tokenizer", t5)
    assert own.encode("<extra_id_0> the fox<extra_id_99>") == other("<extra_id_0> the fox<extra_id_99>")["input_ids"]
    for text in odd_strings(ALPHABET):
        ids = own.encode(text)
        assert ids == other(text)["input_ids"], text
        assert own.decode(ids) == other.decode(ids, skip_special_tokens=True), text


def test_pieces_are_chosen_by_the_source_alone(marian: Path) -> None:
    """The vocabulary has pieces of the target that would be shorter ways to write a text."""
    own = load_tokenizer(marian)
    assert isinstance(own, MarianTokenizer)
    known = {piece.text for piece in read_model_file(marian / "source.spm").pieces}
    assert set(own.tokenize("the quick renard")) <= known


def test_a_damaged_model_file_is_refused_by_name(t5: Path, tmp_path: Path) -> None:
    content = (t5 / "spiece.model").read_bytes()
    random_ = random.Random(1)
    for case in range(60):
        damaged = bytearray(content)
        for _ in range(random_.randint(1, 30)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        cut = bytes(damaged[: random_.randrange(len(damaged))] if case % 2 else damaged)
        (tmp_path / "spiece.model").write_bytes(cut)
        try:
            tokenizer = load_tokenizer(tmp_path)
        except TokenizerError as error:
            assert str(tmp_path) in str(error)
        else:
            assert isinstance(tokenizer, Tokenizer)
            tokenizer.encode("the fox")


def test_a_vocabulary_without_ids_is_refused(marian: Path, tmp_path: Path) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": "one"}')
    with pytest.raises(TokenizerError, match="must give ids"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},  # as Llama 1 and 2 have it
        {  # as Gemma has it
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "add_dummy_prefix": False,
            "user_defined_symbols": ["12", "[x]"],
        },
        {"normalization_rule_name": "identity"},
    ],
)
def test_a_model_that_merges_is_read_from_tokenizer_model_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    """With the ids of the sentencepiece package, and bos before a text."""
    import sentencepiece

    written = trained(CORPUS, 500, "bpe", byte_fallback=True, **options)
    (tmp_path / "tokenizer.model").write_bytes(written)
    tokenizer, theirs = load_tokenizer(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=written)
    assert tokenizer.encode("fox")[0] == tokenizer.special.bos_id == theirs.bos_id()
    assert tokenizer.eos_token_ids == {theirs.eos_id()}
    for text in [*odd_strings(ALPHABET), "the [x] and 12 12"]:
        if not any(token in text for token in ("<s>", "</s>", "<unk>", "▁")):  # a literal mark is a space to some
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert ids == theirs.encode(text), repr(text)
            assert tokenizer.decode(ids) == theirs.decode(ids), repr(text)
