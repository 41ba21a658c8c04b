"""A window's tokens -> segments with times, and how far the window may move: to the end of the last whole segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.audio.vocabulary import SpeechVocabulary


@dataclass(frozen=True, slots=True)
class WordTime:
    word: str  # with the space before it
    start: float  # seconds
    end: float


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """Times are seconds from the beginning of the recording."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]  # times included
    window_start: float = 0.0  # of the window that it was heard in
    temperature: float = 0.0
    average_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[WordTime, ...] = ()
    logprobs: tuple[tuple[int, float], ...] = ()  # of `tokens` those of text, each with its logprob


@dataclass(frozen=True, slots=True)
class TimedTokens:
    start: float  # seconds from the beginning of the window
    end: float
    tokens: tuple[int, ...]
    place: int = 0  # of the first of these among the window's tokens


@dataclass(frozen=True, slots=True)
class WindowTokens:
    segments: tuple[TimedTokens, ...]
    seconds: float  # of the window that these segments cover: the next one begins there


def split_window(tokens: Sequence[int], vocabulary: SpeechVocabulary, window_seconds: float) -> WindowTokens:
    """tokens: what the model wrote for one window, without the end of text.

    Two times in a row end a segment and begin the next. What comes after the last such pair is cut off by the window's
    end and heard again in the next one, unless a single time ends it: then there is no more speech in this window.
    """
    times = [vocabulary.is_time(token) for token in tokens]
    breaks = [place for place in range(1, len(times)) if times[place - 1] and times[place]]
    if not breaks:
        return _one_segment(tokens, times, vocabulary, window_seconds)
    ends_whole = times[-2:] == [False, True]
    ends = [*breaks, len(tokens)] if ends_whole else breaks
    segments = tuple(
        TimedTokens(
            start=vocabulary.seconds(tokens[first]),
            end=vocabulary.seconds(tokens[last - 1]),
            tokens=tuple(tokens[first:last]),
            place=first,
        )
        for first, last in zip([0, *ends], ends, strict=False)
    )
    return WindowTokens(segments, window_seconds if ends_whole else vocabulary.seconds(tokens[breaks[-1] - 1]))


def _one_segment(
    tokens: Sequence[int], times: list[bool], vocabulary: SpeechVocabulary, window_seconds: float
) -> WindowTokens:
    last = max((place for place, is_time in enumerate(times) if is_time), default=-1)
    end = vocabulary.seconds(tokens[last]) if last >= 0 else 0.0
    whole = TimedTokens(start=0.0, end=end or window_seconds, tokens=tuple(tokens))
    return WindowTokens((whole,) if any(not is_time for is_time in times) else (), window_seconds)
