"""Videos: frames evenly over the length of a file, and when they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import VIDEO
from cadence.media.as_media import as_video
from cadence.media.fetch.reader import MediaReader
from cadence.media.io_options import sampling_of
from cadence.media.parts import MediaPart
from cadence.media.video import Sampling
from tests.media.pictures import data_url, picture, pixels, video

ENDINGS = [("mp4", "mpeg4"), ("mp4", "libx264"), ("webm", "libvpx-vp9"), ("matroska", "libx264"), ("avi", "mpeg4")]


@pytest.mark.parametrize(("container", "codec"), ENDINGS)
def test_frames_lie_evenly_over_a_file(container: str, codec: str) -> None:
    """Frame n of a file is of the grey 10 n: 20 of them, 25 a second."""
    found = as_video(video(container, codec), "x", sampling=Sampling(num_frames=5))
    places = [0, 4, 9, 14, 19]
    assert found.frames_np.shape == (5, 48, 64, 3)
    np.testing.assert_allclose(found.times, [place / 25 for place in places], atol=2e-3)
    np.testing.assert_allclose(found.frames_np.mean(axis=(1, 2, 3)), [10 * place for place in places], atol=4)


@pytest.mark.parametrize(
    ("sampling", "count"),
    [
        (Sampling(), 20),
        (Sampling(-1), 20),
        (Sampling(1), 1),
        (Sampling(fps=5), 4),
        (Sampling(2, 5), 2),
        (Sampling(fps=0.1), 1),
    ],
)
def test_how_many_frames_are_kept(sampling: Sampling, count: int) -> None:
    found = as_video(video(), "x", sampling=sampling)
    assert len(found.frames_np) == len(found.times) == count and found.times[0] == 0


def test_frames_as_they_are() -> None:
    frames_np = np.stack([pixels(seed=1), pixels(seed=2)])
    given: list[Any] = [frames_np, [Image.fromarray(one) for one in frames_np], list(frames_np), frames_np / 255]
    found = [as_video(value, "x") for value in given]
    assert len({one.digest for one in found}) == 1 and found[0].times == (0.0, 0.5)
    np.testing.assert_array_equal(found[0].frames_np, frames_np)


def test_frames_in_a_data_url() -> None:
    """As vLLM has them: a JPEG each, with commas between."""
    first, second = (data_url(picture("JPEG", seed=seed)).partition(",")[2] for seed in (1, 2))
    part = MediaPart(VIDEO, "x", f"data:video/jpeg;base64,{first},{second}")
    (found,) = MediaReader().read([part])[VIDEO]
    expected = as_video([picture("JPEG", seed=seed) for seed in (1, 2)], "x")
    assert found.digest == expected.digest


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3, 4)), np.zeros((0, 4, 4, 3), np.uint8), [], [pixels(4, 4), pixels(4, 5)], [3], 3, "missing.mp4"],
)
def test_what_is_no_video_is_named(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="part") as caught:
        as_video(value, "part")
    assert caught.value.field.startswith("part")


def test_options() -> None:
    assert sampling_of(None) == Sampling() == sampling_of({}) == sampling_of({"image": {}})
    before = sampling_of({"video": {"num_frames": 7}})
    assert sampling_of({"video": {"fps": 2}}, before) == Sampling(7, 2.0)
    for bad in (3, {"audio": {}}, {"video": 3}, {"video": {"size": 3}}, {"image": {"num_frames": 1}}):
        with pytest.raises(InvalidRequestError, match="media_io_kwargs"):
            sampling_of(bad)
    for number in (0, -2, True, "3", 1.5):
        with pytest.raises(InvalidRequestError, match=r"media_io_kwargs.video.num_frames"):
            sampling_of({"video": {"num_frames": number}})
