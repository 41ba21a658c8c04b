"""Tokens -> words: by spaces, or character by character in languages that have none; punctuation stays with a word."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadence.audio.languages import WITHOUT_SPACES
from cadence.audio.segments import WordTime

_BEFORE = "\"'“¡¿([{-"  # belongs to the word after it
_AFTER = "\"'.。,，!！?？:：”)]}、"  # belongs to the word before it
_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class WordTokens:
    text: str  # with the space before it
    places: list[int]  # of its tokens


def group_words(tokens: Sequence[int], language: str, decode: Callable[[Sequence[int]], str]) -> list[WordTokens]:
    """tokens: of text alone."""
    pieces = _whole_characters(tokens, decode)
    words = pieces if language in WITHOUT_SPACES else _joined(pieces)
    return _with_followers(_with_leaders(words))


def word_times(words: Sequence[WordTokens], starts: Sequence[float], end: float) -> list[WordTime]:
    """`starts`: when each token begins; `end`: when the last one ends. A word ends where the next begins."""
    begins = [starts[word.places[0]] for word in words]
    ends = [*begins[1:], max([end, *begins[-1:]])]
    return [WordTime(word.text, begin, word_end) for word, begin, word_end in zip(words, begins, ends, strict=False)]


def _whole_characters(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[WordTokens]:
    """The fewest tokens that are whole characters together. What is broken in the whole text, too, counts as whole."""
    whole, found, start, offset = decode(tokens), list[WordTokens](), 0, 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[start:end])
        broken = text.find(_BROKEN)
        if broken < 0 or offset + broken >= len(whole) or whole[offset + broken] == _BROKEN:
            found.append(WordTokens(text, list(range(start, end))))
            start, offset = end, offset + len(text)
    return found


def _joined(pieces: list[WordTokens]) -> list[WordTokens]:
    """A piece with a space before it, or of punctuation alone, begins a word."""
    words: list[WordTokens] = []
    for piece in pieces:
        if not words or piece.text.startswith(" ") or piece.text.strip() in string.punctuation:
            words.append(piece)
        else:
            words[-1] = WordTokens(words[-1].text + piece.text, words[-1].places + piece.places)
    return words


def _with_leaders(words: list[WordTokens]) -> list[WordTokens]:
    made: list[WordTokens] = []  # backwards
    for word in reversed(words):
        if made and word.text.startswith(" ") and word.text.strip() in _BEFORE:
            made[-1] = WordTokens(word.text + made[-1].text, word.places + made[-1].places)
        else:
            made.append(word)
    return made[::-1]


def _with_followers(words: list[WordTokens]) -> list[WordTokens]:
    made: list[WordTokens] = []
    for word in words:
        if made and not made[-1].text.endswith(" ") and word.text in _AFTER:
            made[-1] = WordTokens(made[-1].text + word.text, made[-1].places + word.places)
        else:
            made.append(word)
    return made
