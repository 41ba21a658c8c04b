"""Whisper's special tokens are read off a tokenizer and generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from cadence.audio.errors import AudioError
from cadence.audio.languages import NAMES, WITHOUT_SPACES, language_code, language_name
from cadence.audio.prompts import start_tokens
from cadence.audio.vocabulary import read_speech_vocabulary
from cadence.core.errors import ModelFileError

TOKENS = {
    "a": 0,
    "<|endoftext|>": 50257,
    "<|startoftranscript|>": 50258,
    "<|en|>": 50259,
    "<|zh|>": 50260,
    "<|haw|>": 50352,
    "<|translate|>": 50358,
    "<|transcribe|>": 50359,
    "<|startoflm|>": 50360,
    "<|startofprev|>": 50361,
    "<|nocaptions|>": 50362,
    "<|notimestamps|>": 50363,
}


def test_a_multilingual_model(tmp_path: Path) -> None:
    raw = {
        "suppress_tokens": [1, 2],
        "begin_suppress_tokens": [220, 50257],
        "max_initial_timestamp_index": 25,
        "alignment_heads": [[2, 2], [3, 0]],
        "is_multilingual": True,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(raw))
    vocabulary = read_speech_vocabulary(tmp_path, TOKENS)
    assert vocabulary.languages == {"en": 50259, "zh": 50260, "haw": 50352}
    assert (vocabulary.first_timestamp, vocabulary.no_speech) == (50364, 50362)
    assert vocabulary.alignment_heads == ((2, 2), (3, 0))
    assert vocabulary.rules(True).max_initial == 25
    assert not vocabulary.rules(False).timestamps
    assert start_tokens(vocabulary, "Chinese", "translate", True) == [50258, 50260, 50358]
    assert start_tokens(vocabulary, "en-US", "transcribe", False) == [50258, 50259, 50359, 50363]
    assert vocabulary.seconds(50364 + 150) == pytest.approx(3.0)


def test_a_model_that_knows_english_alone(tmp_path: Path) -> None:
    tokens = {name: token - 1 if token else 0 for name, token in TOKENS.items()}
    vocabulary = read_speech_vocabulary(tmp_path, tokens)  # without a file, the ids tell
    assert not vocabulary.multilingual
    assert start_tokens(vocabulary, "en", "transcribe", True) == [50257]
    with pytest.raises(AudioError, match="does not translate"):
        start_tokens(vocabulary, "en", "translate", True)


@pytest.mark.parametrize(
    "raw",
    [
        {"suppress_tokens": "all"},
        {"begin_suppress_tokens": [-1]},
        {"max_initial_timestamp_index": 1.5},
        {"alignment_heads": [[1]]},
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, raw: dict[str, object]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelFileError, match=next(iter(raw))):
        read_speech_vocabulary(tmp_path, TOKENS)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="notimestamps"):
        read_speech_vocabulary(tmp_path, {"a": 0})


def test_languages_are_those_of_transformers() -> None:
    assert NAMES == LANGUAGES
    assert all(language_code(name.title()) == code for name, code in TO_LANGUAGE_CODE.items())
    without_spaces = {"chinese", "japanese", "thai", "lao", "myanmar", "cantonese"}
    assert {language_name(code) for code in WITHOUT_SPACES} == without_spaces
