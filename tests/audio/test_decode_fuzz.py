"""Files that were mangled: samples or an AudioError, never anything else, and never more memory than the limits say."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cadence.audio.decode import decode_audio
from cadence.audio.errors import AudioError
from cadence.audio.limits import AudioLimits
from tests.helpers.recordings import KINDS, encoded, tone, wav_file
from tests.helpers.wide import examples

LIMITS = AudioLimits(seconds=3.0)
_WAV = {"wav": 16_000, "wide wav": 44_100}


@cache
def whole(kind: str) -> bytes:
    if kind in _WAV:
        return wav_file(tone(0.3, _WAV[kind]), rate=_WAV[kind])
    return encoded(kind, tone(0.3, KINDS[kind][2]))


places = st.floats(0, 1, exclude_max=True)
# Heads are where the lies matter most: half of the changes fall into the first hundred bytes.
changes = st.lists(st.tuples(places, st.booleans(), st.integers(0, 255)), max_size=8)


@examples(60, 2000)
@given(
    kind=st.sampled_from([*KINDS, *_WAV]),
    changed=changes,
    cut=st.one_of(st.just(1.0), places),
    doubled=st.tuples(places, places),
)
def test_a_mangled_file_is_samples_or_an_audio_error(
    kind: str, changed: list[tuple[float, bool, int]], cut: float, doubled: tuple[float, float]
) -> None:
    data = bytearray(whole(kind))
    for place, in_head, value in changed:
        data[int(place * (min(100, len(data)) if in_head else len(data)))] = value
    first, last = sorted(int(place * len(data)) for place in doubled)
    data[last:last] = data[first:last]
    _check(bytes(data[: int(cut * len(data))]))


@examples(30, 1000)
@given(head=st.sampled_from([whole(kind)[:16] for kind in ("wav", "flac", "ogg")]), rest=st.binary(max_size=400))
def test_noise_after_a_head(head: bytes, rest: bytes) -> None:
    _check(head + rest)


def _check(data: bytes) -> None:
    try:
        samples_np = decode_audio(data, LIMITS)
    except AudioError as error:
        assert str(error).endswith(".")
        return
    assert samples_np.dtype == np.float32
    assert 1_600 <= len(samples_np) <= 3 * 16_000
    assert np.isfinite(samples_np).all()
