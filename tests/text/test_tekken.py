"""Tokenizers of Mistral's own files: tekken.json, tokenizer.model.v3; and chats as its package writes them."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from cadence.core.errors import TemplateError, TokenizerError
from cadence.text.chat_template import ChatRequest
from cadence.text.chats import chats_for
from cadence.text.hf_directory import load_tokenizer
from cadence.text.pieces import byte_level_alphabet
from tests.helpers.tiny_sentencepiece import trained
from tests.helpers.tiny_tokenizers import CORPUS
from tests.text.test_sentencepiece import ALPHABET, MARKS, odd_strings

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = 30
CHAT = [
    {"role": "user", "content": "hello [INST] there"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "déjà vu?"},
]


@pytest.fixture(scope="module")
def ranks() -> list[bytes]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=letters))
    byte_of = byte_level_alphabet()
    words = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    found = [bytes(byte_of[letter] for letter in word) for word, _ in words]
    return sorted(found, key=lambda word: len(word) > 1)  # bytes first; the sort keeps the order of merges


def write_tekken(directory: Path, ranks: list[bytes], **more: Any) -> Path:
    config = {"pattern": PATTERN, "num_vocab_tokens": len(ranks) + 7, "default_vocab_size": SPECIAL + len(ranks)}
    config |= {"default_num_special_tokens": SPECIAL, "version": "v3"}
    words = [*ranks, *(b"never %d" % at for at in range(7))]  # beyond the vocabulary
    vocab = [
        {"rank": at, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for at, word in enumerate(words)
    ]
    directory.mkdir(exist_ok=True)
    (directory / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, **more}))
    return directory


def by_rank(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The neighbours that make the token of the lowest rank go together, again and again."""
    if word in ranks:
        return [ranks[word]]
    parts = [word[at : at + 1] for at in range(len(word))]
    while True:
        pairs = [(ranks.get(parts[at] + parts[at + 1], len(ranks)), at) for at in range(len(parts) - 1)]
        rank, at = min(pairs, default=(len(ranks), 0))
        if rank == len(ranks):
            return [ranks[part] for part in parts]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_tekken_merges_by_rank(tmp_path: Path, ranks: list[bytes]) -> None:
    tokenizer = load_tokenizer(write_tekken(tmp_path, ranks))
    rank_of = {word: rank for rank, word in enumerate(ranks)}
    for text in odd_strings([*ALPHABET, *MARKS]):
        if "</s>" not in text and "<unk>" not in text and "<pad>" not in text:
            words = [word.encode() for word in regex.findall(PATTERN, text)]
            expected = [SPECIAL + rank for word in words for rank in by_rank(word, rank_of)]
            assert tokenizer.encode(text, add_special_tokens=False) == expected, repr(text)
            assert tokenizer.decode(expected) == text


def test_special_tokens_come_first(tmp_path: Path, ranks: list[bytes]) -> None:
    tokenizer = load_tokenizer(write_tekken(tmp_path / "old", ranks))
    assert tokenizer.encode("[INST]a[/INST]</s>")[:2] == [1, 3]
    assert tokenizer.encode("</s>")[-1] == 2 and tokenizer.eos_token_ids == {2}
    named = [
        {"rank": at, "token_str": token, "is_control": True}
        for at, token in enumerate(("<unk>", "<s>", "</s>", "[NEW]"))
    ]
    newer = load_tokenizer(write_tekken(tmp_path / "new", ranks, special_tokens=named))
    assert newer.encode("[NEW]<SPECIAL_29>") == [1, 3, 29]


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path, ranks: list[bytes]) -> None:
    path = write_tekken(tmp_path, ranks) / "tekken.json"
    said = json.loads(path.read_text())
    for wrong in (
        {},
        [],
        {**said, "vocab": said["vocab"][::-1]},
        {**said, "config": {**said["config"], "pattern": "("}},
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(TokenizerError, match=r"tekken\.json"):
            load_tokenizer(tmp_path)
    path.write_text('{"vocab": ' + "[" * 100_000)
    with pytest.raises(TokenizerError, match=r"tekken\.json"):
        load_tokenizer(tmp_path)


def test_the_mode_decides_among_several(tmp_path: Path, ranks: list[bytes]) -> None:
    directory = write_tekken(tmp_path, ranks)
    (directory / "tokenizer.model").write_bytes(trained(CORPUS, model_type="bpe", byte_fallback=True, pieces=400))
    sentencepiece, tekken = load_tokenizer(directory), load_tokenizer(directory, "mistral")
    assert tekken.vocab_size == SPECIAL + len(ranks) != sentencepiece.vocab_size
    (directory / "tekken.json").rename(directory / "elsewhere.json")
    (directory / "tokenizer.model").rename(directory / "tokenizer.model.v3")
    assert load_tokenizer(directory, "mistral").encode("a b") == sentencepiece.encode("a b")
    (directory / "tokenizer.model.v3").unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer_mode=mistral reads tekken\.json, .*; there is none"):
        load_tokenizer(directory, "mistral")


def test_chats_want_the_package(tmp_path: Path, ranks: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(write_tekken(tmp_path, ranks))
    chats = chats_for(tokenizer, False)
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    monkeypatch.setitem(sys.modules, "mistral_common.protocol.instruct.request", None)
    with pytest.raises(TemplateError, match=r"mistral_common .pip install mistral-common., which is not installed"):
        chats.render(ChatRequest(CHAT), "")
    own = "{% for message in messages %}[INST]{{ message.content }}[/INST]{% endfor %}"
    rendered = chats.render(ChatRequest(CHAT[:1]), own)
    assert chats.encode(rendered, False) == tokenizer.encode("[INST]hello [INST] there[/INST]", False)
    assert chats.text(rendered) == rendered


def test_chats_have_the_tokens_that_the_package_gives(
    tmp_path: Path, ranks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def from_openai(**given: Any) -> dict[str, Any]:
        asked.append(given)
        if given["messages"][-1]["role"] != "user":
            raise ValueError("the last message must be a user's")
        return given

    writes = SimpleNamespace(encode_chat_completion=lambda asked: SimpleNamespace(tokens=[1, 3, 99, 4]))
    request, mistral = ModuleType("request"), ModuleType("mistral")
    request.ChatCompletionRequest = SimpleNamespace(from_openai=from_openai)  # type: ignore[attr-defined]
    mistral.MistralTokenizer = SimpleNamespace(from_file=lambda path: writes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mistral_common.protocol.instruct.request", request)
    monkeypatch.setitem(sys.modules, "mistral_common.tokens.tokenizers.mistral", mistral)
    chats = chats_for(load_tokenizer(write_tekken(tmp_path, ranks)), True)
    rendered = chats.render(ChatRequest(CHAT), "")
    assert chats.encode(rendered, True) == [1, 3, 99, 4]
    assert chats.text(rendered).startswith("<s>[INST]") and asked[0]["messages"] == CHAT
    with pytest.raises(TemplateError, match="must be a user's"):
        chats.render(ChatRequest(CHAT[:2]), "")


def test_it_is_what_mistral_common_gives(tmp_path: Path) -> None:
    """With the tokenizers that the package brings."""
    data = Path(pytest.importorskip("mistral_common").__file__ or "").parent / "data"
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral").MistralTokenizer
    request = pytest.importorskip("mistral_common.protocol.instruct.request").ChatCompletionRequest
    files = {"tekken_240911.json": "tekken.json", "mistral_instruct_tokenizer_240323.model.v3": "tokenizer.model.v3"}
    for source, name in files.items():
        directory = tmp_path / source
        directory.mkdir()
        (directory / name).write_bytes((data / source).read_bytes())
        tokenizer, theirs = load_tokenizer(directory, "mistral"), mistral.from_file(str(directory / name))
        plain = theirs.instruct_tokenizer.tokenizer
        for text in odd_strings(ALPHABET)[:80]:
            if "</s>" not in text and "<unk>" not in text and "<pad>" not in text:
                assert tokenizer.encode(text) == plain.encode(text, bos=True, eos=False), repr(text)
        chats = chats_for(tokenizer, False)
        expected = theirs.encode_chat_completion(request.from_openai(messages=CHAT)).tokens
        assert chats.encode(chats.render(ChatRequest(CHAT), ""), False) == expected
