"""Speech is found where it was put, and times survive the silences that are dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.audio.activity import DEFAULT_ACTIVITY, KeptSpans, find_speech, silences
from cadence.audio.windows import Window
from tests.helpers.recordings import tone

RATE = 16_000
PADDING = DEFAULT_ACTIVITY.padding_seconds


def syllables(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise through a band of a voice, four bursts a second with short gaps between them."""
    random = np.random.default_rng(seed)
    noise_np = np.convolve(random.standard_normal(int(seconds * RATE)), np.sin(np.arange(40) * 0.4), mode="same")
    loudness_np = np.clip(np.sin(2 * np.pi * 4 * np.arange(len(noise_np)) / RATE) + 0.3, 0, 1)
    return (0.03 * noise_np * loudness_np).astype(np.float32)


def recording(parts: list[tuple[str, float]], noise: float) -> np.ndarray:
    """Speech-like noise and tones, with pauses of a given noise."""
    made = []
    for place, (kind, seconds) in enumerate(parts):
        samples_np = np.zeros(int(seconds * RATE), np.float32)
        if kind == "speech":
            samples_np = syllables(seconds, place)
        elif kind == "tone":
            samples_np = tone(seconds, hertz=600.0) / 2
        made.append(samples_np)
    whole_np = np.concatenate(made)
    return whole_np + (noise * np.random.default_rng(9).standard_normal(len(whole_np))).astype(np.float32)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 2e-3])
def test_speech_is_found_where_it_was_put(noise: float) -> None:
    samples_np = recording([("", 3), ("speech", 4), ("", 5), ("tone", 1), ("", 4), ("speech", 2), ("", 1)], noise)
    spans = find_speech(samples_np, RATE)
    expected = [(3, 7), (12, 13), (17, 19)]
    assert len(spans) == len(expected)
    for span, (start, end) in zip(spans, expected, strict=True):
        assert start - PADDING - 0.05 <= span.first / RATE <= start - PADDING + 0.15
        assert end + PADDING - 0.25 <= span.last / RATE <= end + PADDING + 0.45


def test_short_pauses_are_kept() -> None:
    spans = find_speech(recording([("speech", 3), ("", 1.5), ("speech", 3)], 1e-4), RATE)
    assert len(spans) == 1
    assert spans[0].last - spans[0].first > 7.2 * RATE


def test_a_click_is_no_speech() -> None:
    samples_np = recording([("speech", 2), ("", 6)], 1e-4)
    samples_np[5 * RATE : 5 * RATE + 300] = 0.5  # 19 ms
    assert len(find_speech(samples_np, RATE)) == 1


def test_silence_has_no_speech_and_noise_is_kept() -> None:
    assert find_speech(np.zeros(5 * RATE, np.float32), RATE) == []
    noise_np = (0.05 * np.random.default_rng(0).standard_normal(5 * RATE)).astype(np.float32)
    assert find_speech(noise_np, RATE) == [Window(0, 5 * RATE)]
    assert find_speech(noise_np[:100], RATE) == [Window(0, 100)]
    assert find_speech(noise_np[:0], RATE) == []


def test_hum_is_not_speech() -> None:
    samples_np = recording([("speech", 3), ("", 6)], 1e-4) + tone(9.0, hertz=50.0) / 100
    assert len(find_speech(samples_np, RATE)) == 1
    assert find_speech(samples_np, RATE)[0].last < 4.5 * RATE


@given(cuts=st.lists(st.integers(0, 5000), min_size=2, max_size=10, unique=True))
def test_times_of_what_is_kept_are_those_of_the_recording(cuts: list[int]) -> None:
    cuts = sorted(cuts[: len(cuts) // 2 * 2])
    spans = [Window(first, last) for first, last in zip(cuts[::2], cuts[1::2], strict=True)]
    samples_np = np.arange(5000, dtype=np.float32)
    kept = KeptSpans(spans, rate=100)
    short_np = kept.cut(samples_np)
    for place, value in enumerate(short_np.tolist()):
        assert kept.original(place / 100) == pytest.approx(value / 100)
    ends = [kept.original(end / 100, is_end=True) for end in np.cumsum([span.num_samples for span in spans])]
    assert ends == pytest.approx([span.last / 100 for span in spans])
    assert sum(gap.num_samples for gap in silences(spans, 5000)) == 5000 - len(short_np)
