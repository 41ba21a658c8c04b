"""A window's tokens become the segments of transformers' long-form decoding, and move the window as far."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from cadence.audio.segments import split_window
from tests.helpers.speech import VOCABULARY, at
from tests.helpers.wide import examples

WINDOW = 30.0


def oracle(tokens: list[int]) -> tuple[list[tuple[float, float, list[int]]], float]:
    segments, frames = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[{}],
        time_offset=torch.tensor([0.0], dtype=torch.float64),
        timestamp_begin=VOCABULARY.first_timestamp,
        seek_num_frames=torch.tensor([3000]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    found = [(float(each["start"]), float(each["end"]), each["tokens"].tolist()) for each in segments]
    return found, float(frames) * 0.01


@st.composite
def transcripts(draw: st.DrawFn) -> list[int]:
    """Times rise; a segment is a time, text and a time; what comes last may be unfinished."""
    count = draw(st.integers(1, 5))
    times = sorted(draw(st.lists(st.integers(0, 1500), min_size=2 * count, max_size=2 * count)))
    text = st.lists(st.integers(0, 97), min_size=1, max_size=4)
    tokens = []
    for start, end in zip(times[::2], times[1::2], strict=True):
        tokens += [VOCABULARY.first_timestamp + start, *draw(text), VOCABULARY.first_timestamp + end]
    return tokens[: draw(st.integers(2, len(tokens)))]


@examples(100, 1000)
@given(tokens=transcripts())
def test_segments_and_progress_of_transformers(tokens: list[int]) -> None:
    expected, seconds = oracle(tokens)
    found = split_window(tokens, VOCABULARY, WINDOW)
    assert found.seconds == pytest.approx(seconds)
    assert len(found.segments) == len(expected)
    for segment, (start, end, inner) in zip(found.segments, expected, strict=True):
        assert (segment.start, segment.end) == pytest.approx((start, end))
        # It keeps the second time of a last pair with the segment; here that one begins what is heard again.
        assert list(segment.tokens) in (inner, inner[:-1])


def test_what_is_cut_off_is_heard_again() -> None:
    tokens = [at(0), 1, 2, at(4.5), at(5), 3, 4]
    found = split_window(tokens, VOCABULARY, WINDOW)
    assert [(each.start, each.end) for each in found.segments] == [(0.0, 4.5)]
    assert found.seconds == pytest.approx(4.5)


def test_a_window_without_words_is_left_whole() -> None:
    for tokens in ([], [at(0)], [at(0), at(29)]):
        found = split_window(tokens, VOCABULARY, WINDOW)
        assert all(np.array(each.tokens).min() >= VOCABULARY.first_timestamp for each in found.segments)
