"""The words of a window with their times: what the engine is asked, and what its answer says of each segment."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cadence.audio.alignment import FloatArray, token_times
from cadence.audio.segments import TimedTokens, WordTime
from cadence.audio.words import group_words, word_times
from cadence.core.inputs.alignment import AlignmentSpec

_OF_MEDIAN, _SLOW = 2.0, 0.7  # times the median of a window's words; seconds of a median that counts as slow
_MARKS = tuple(".,;:!?…。、，！？：；")


@dataclass(frozen=True, slots=True)
class SegmentText:
    """Where the text of a segment lies among all text of its window."""

    segment: TimedTokens
    tokens: tuple[int, ...]  # without times
    place: int  # of the first


@dataclass(frozen=True, slots=True)
class WindowText:
    """All text of a window, which is looked for in its sound."""

    segments: tuple[SegmentText, ...]

    @classmethod
    def of(cls, segments: Sequence[TimedTokens], end_of_text: int) -> WindowText:
        """end_of_text: tokens from it on are no text"""
        found, place = list[SegmentText](), 0
        for segment in segments:
            tokens = tuple(token for token in segment.tokens if token < end_of_text)
            found.append(SegmentText(segment, tokens, place))
            place += len(tokens)
        return cls(tuple(found))

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    def spec(self, start: Sequence[int], positions: int, heads: tuple[tuple[int, int], ...]) -> AlignmentSpec:
        """Of a request for `start` and these tokens. The last token of `start` is about to say the first of the text:
        where it looks is where that is said. So the last token of the text says where its last word ends."""
        return AlignmentSpec(first=len(start) - 1, positions=positions, heads=heads)

    def words(
        self, matrix_np: FloatArray, seconds_a_position: float, language: str, decode: Callable[[Sequence[int]], str]
    ) -> list[tuple[WordTime, ...]]:
        """matrix [1 + tokens, positions] -> of each segment its words; seconds from the beginning of the window"""
        times = token_times(matrix_np, seconds_a_position).tolist()
        found = list[list[WordTime]]()
        for text in self.segments:
            starts = times[text.place : text.place + len(text.tokens)]
            end = times[text.place + len(text.tokens)]
            found.append(word_times(group_words(text.tokens, language, decode), starts, end))
        longest = _longest([word for words in found for word in words])
        return [
            tuple(_within(_without_pauses(words, longest), text.segment))
            for words, text in zip(found, self.segments, strict=True)
        ]


def _longest(words: list[WordTime]) -> float:
    """Seconds that a word lasts at most, where one that seems to last longer may have a pause in it."""
    lasting = [word.end - word.start for word in words if word.end > word.start]
    return _OF_MEDIAN * min(statistics.median(lasting), _SLOW) if lasting else 0.0


def _without_pauses(words: list[WordTime], longest: float) -> list[WordTime]:
    """A word ends where the next begins, so it has the pause between them: it is cut off at a word with a mark after
    it, or, where no such word is before, at the one that begins to speak."""
    made = list[WordTime]()
    for word in words:
        if word.end - word.start > longest:
            begins = not made or made[-1].word.endswith(_MARKS)
            if word.word.endswith(_MARKS):
                word = replace(word, end=word.start + longest)
            elif begins:
                word = replace(word, start=word.end - longest)
        made.append(word)
    return made


def _within(words: list[WordTime], segment: TimedTokens) -> list[WordTime]:
    """A pause before or after a segment belongs to no word. A word that lies beyond the segment's ends stays there: the
    two were found in different ways, and either may be right."""
    if words and words[0].start < segment.start < words[0].end:
        words[0] = replace(words[0], start=segment.start)
    if words and words[-1].start < segment.end < words[-1].end:
        words[-1] = replace(words[-1], end=segment.end)
    return words
