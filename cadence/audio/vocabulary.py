"""Whisper's special tokens: which id is a language, a task, a time, the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.audio.errors import AudioError
from cadence.audio.languages import language_code
from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.core.errors import ModelFileError
from cadence.core.speech_rules import NO_TOKEN_ID, SpeechRules

SECONDS_A_STEP = 0.02  # from a time token to the next
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TASKS = ("transcribe", "translate")


@dataclass(frozen=True, slots=True)
class SpeechVocabulary:
    end_of_text: int
    start: int  # <|startoftranscript|>
    previous: int  # <|startofprev|>: the text before, for context
    no_speech: int
    no_timestamps: int
    first_timestamp: int  # <|0.00|>; later ones follow
    tasks: Mapping[str, int]  # of TASKS
    languages: Mapping[str, int]  # code -> token; empty = the model knows English alone
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    max_initial: int = 50  # steps: the first time is at most a second
    alignment_heads: tuple[tuple[int, int], ...] = ()  # (layer, head) whose attention follows the words

    @property
    def multilingual(self) -> bool:
        return bool(self.languages)

    def language_of(self, token: int) -> str:
        """-> its code, "" of a token that is no language."""
        return next((code for code, found in self.languages.items() if found == token), "")

    def language_token(self, name: str) -> int:
        """Of a code or an English name."""
        token = self.languages.get(language_code(name))
        if token is None:
            known = ", ".join(sorted(self.languages)) or "en"
            raise AudioError(f"language {name[:40]!r} is none that this model knows: {known}.", "language")
        return token

    def is_time(self, token: int) -> bool:
        return token >= self.first_timestamp

    def seconds(self, token: int) -> float:
        """Of a time token, from the beginning of its window."""
        return (token - self.first_timestamp) * SECONDS_A_STEP

    def rules(self, timestamps: bool) -> SpeechRules:
        """For the tokens of one window."""
        return SpeechRules(
            first_timestamp=self.first_timestamp if timestamps else NO_TOKEN_ID,
            no_timestamps=self.no_timestamps,
            end_of_text=self.end_of_text,
            max_initial=self.max_initial,
            suppressed=self.suppressed,
            suppressed_first=self.suppressed_first,
        )


def read_speech_vocabulary(directory: Path, token_ids: Mapping[str, int]) -> SpeechVocabulary:
    """`token_ids`: of the tokenizer, by the tokens' names. What generation_config.json says, goes first."""
    path = directory / "generation_config.json"
    raw = read_object(path, MOST_CONFIG_BYTES, ModelFileError) if path.is_file() else {}
    no_timestamps = _token(token_ids, "<|notimestamps|>")
    languages = {match[1]: token for name, token in token_ids.items() if (match := _LANGUAGE.fullmatch(name))}
    is_multilingual = raw.get("is_multilingual", no_timestamps > 50_362)  # English alone has one text token less
    return SpeechVocabulary(
        end_of_text=_token(token_ids, "<|endoftext|>"),
        start=_token(token_ids, "<|startoftranscript|>"),
        previous=_token(token_ids, "<|startofprev|>"),
        no_speech=_token(token_ids, "<|nospeech|>", "<|nocaptions|>"),
        no_timestamps=no_timestamps,
        first_timestamp=no_timestamps + 1,
        tasks={task: _token(token_ids, f"<|{task}|>") for task in TASKS},
        languages=languages if is_multilingual is True else {},
        suppressed=_ids(raw, "suppress_tokens", path),
        suppressed_first=_ids(raw, "begin_suppress_tokens", path),
        max_initial=_max_initial(raw, path),
        alignment_heads=_heads(raw, path),
    )


def _token(token_ids: Mapping[str, int], *names: str) -> int:
    for name in names:
        if name in token_ids:
            return token_ids[name]
    raise ModelFileError(f"The tokenizer has no token {names[0]}: it is not that of a Whisper model.", "tokenizer")


def _ids(raw: Mapping[str, Any], name: str, path: Path) -> tuple[int, ...]:
    found = raw.get(name) or []
    if not isinstance(found, list) or not all(type(token) is int and token >= 0 for token in found):
        raise ModelFileError(f"{path}: {name} must be a list of token ids.")
    return tuple(found)


def _max_initial(raw: Mapping[str, Any], path: Path) -> int:
    found = raw.get("max_initial_timestamp_index")
    if found is None:
        return 50
    if type(found) is not int or found < 0:
        raise ModelFileError(f"{path}: max_initial_timestamp_index must be an integer, 0 or more.")
    return found


def _heads(raw: Mapping[str, Any], path: Path) -> tuple[tuple[int, int], ...]:
    found = raw.get("alignment_heads") or []
    pairs = isinstance(found, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(part) is int and part >= 0 for part in pair)
        for pair in found
    )
    if not pairs:
        raise ModelFileError(f"{path}: alignment_heads must be a list of pairs of a layer and a head.")
    return tuple((layer, head) for layer, head in found)
