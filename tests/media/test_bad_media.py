"""What is wrong with a picture or a video is one error that names its part, found before it costs anything."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.media.decode import decode_picture
from cadence.media.fetch.addresses import resolved
from cadence.media.fetch.read_url import UrlReader
from cadence.media.fetch.reader import MediaReader
from cadence.media.limits import DEFAULT_LIMITS, MediaAccess
from cadence.media.parts import MediaPart
from cadence.media.video_decode import decode_video
from tests.media import bad_media
from tests.media.bad_media import MOST_BYTES, MOST_PIXELS
from tests.media.pictures import FORMATS, data_url, picture, png_of_size, video

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # what it thinks of damaged files

WHERE = "messages[3].content[1].image_url.url"
LIMITS = replace(
    DEFAULT_LIMITS,
    image_bytes=MOST_BYTES,
    video_bytes=MOST_BYTES,
    image_pixels=MOST_PIXELS,
    prompt_pixels=4 * MOST_PIXELS,
)
FILES, VIDEOS, URLS = bad_media.bad_files(), bad_media.bad_videos(), bad_media.bad_urls()
MB = 2**20


@pytest.fixture(scope="module")
def peak() -> Iterator[None]:
    """All of the campaign together takes little memory, whatever it says of itself."""
    picture("WEBP")
    decode_picture(picture("WEBP"), WHERE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 150, f"{grown:.0f} MB"


def refused(url: str, kind: str, word: str, where: str = WHERE) -> None:
    access = MediaAccess(domains=frozenset("*"))
    reader = MediaReader(LIMITS, UrlReader(LIMITS, access, resolve=numbers_alone))
    with pytest.raises(InvalidRequestError) as caught:
        reader.read([MediaPart(kind, where, url)])
    assert caught.value.field == where and where in str(caught.value)
    assert word.lower() in str(caught.value).lower() and len(str(caught.value)) < 500


def numbers_alone(host: str, port: int) -> list[str]:
    """Of what is no number, nothing is known: no test asks the DNS."""
    if any(character not in "0123456789abcdefx.:%" for character in host):
        raise OSError("no such name")
    return resolved(host, port)


def test_the_campaign_is_large() -> None:
    assert len(FILES) + len(VIDEOS) + len(URLS) > 250
    assert len({name for name, _, _ in FILES}) == len(FILES)


@pytest.mark.parametrize(("name", "data", "word"), FILES, ids=[name for name, _, _ in FILES])
def test_bad_pictures(peak: None, name: str, data: bytes, word: str) -> None:
    refused(data_url(data, "image/png"), IMAGE, word)


@pytest.mark.parametrize(("name", "data", "word"), VIDEOS, ids=[name for name, _, _ in VIDEOS])
def test_bad_videos(peak: None, name: str, data: bytes, word: str) -> None:
    refused(data_url(data, "video/mp4"), VIDEO, word)


@pytest.mark.parametrize("bad", URLS, ids=[bad.name for bad in URLS])
def test_bad_urls(peak: None, bad: bad_media.Bad) -> None:
    refused(bad.url, bad.kind, bad.word)


def test_a_header_that_lies_makes_no_more_pixels_than_it_says(peak: None) -> None:
    """The data of a PNG of 10 x 10 would unpack to 50 MB."""
    try:
        made = decode_picture(bad_media.png_that_lies(), WHERE, LIMITS)
    except InvalidRequestError:
        return
    assert made.pixels_np.shape == (10, 10, 3)


def test_a_prompt_has_limits_of_its_own() -> None:
    counts = {IMAGE: 5, VIDEO: 0}
    reader = MediaReader(replace(LIMITS, per_prompt=counts, prompt_pixels=3000))
    small = MediaReader(replace(LIMITS, per_prompt=counts, prompt_bytes=2 * len(picture())))
    part = MediaPart(IMAGE, "a[0]", data_url(picture()))
    with pytest.raises(InvalidRequestError, match=r"a\[5\]: a prompt may have at most 5 pictures"):
        reader.read([replace(part, where=f"a[{number}]") for number in range(6)])
    with pytest.raises(InvalidRequestError, match=r"at most 0 videos"):
        reader.read([MediaPart(VIDEO, "a", data_url(video()))])
    with pytest.raises(InvalidRequestError, match=r"a\[2\]: pictures and frames .* 3000 pixels together"):
        reader.read([replace(part, where=f"a[{number}]") for number in range(3)])
    with pytest.raises(InvalidRequestError, match=r"a\[2\]: the files .* bytes together"):
        small.read([replace(part, where=f"a[{number}]") for number in range(3)])


def test_the_smallest_picture_is_one() -> None:
    assert decode_picture(png_of_size(1, 1), WHERE).pixels_np.tolist() == [[[0, 0, 0]]]


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=6)), max_size=6),
)
def test_damaged_pictures_are_pictures_or_errors(name: str, changes: list[tuple[int, bytes]]) -> None:
    data = damaged(picture(name), changes)
    try:
        made = decode_picture(data, WHERE, LIMITS)
    except InvalidRequestError as error:
        assert error.field == WHERE
    else:
        assert made.pixels_np.dtype == np.uint8 and made.num_pixels <= MOST_PIXELS


@settings(max_examples=60, deadline=None)
@given(
    container=st.sampled_from(["mp4", "matroska", "avi"]),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=6)), max_size=6),
)
def test_damaged_videos_are_videos_or_errors(container: str, changes: list[tuple[int, bytes]]) -> None:
    data = damaged(video(container), changes)
    try:
        made = decode_video(data, WHERE, LIMITS)
    except InvalidRequestError as error:
        assert error.field == WHERE
    else:
        assert made.frames_np.dtype == np.uint8 and made.num_pixels <= 4 * MOST_PIXELS


def damaged(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    changed = bytearray(data)
    for place, new in changes:
        at = place % len(changed)
        changed[at : at + len(new)] = new
    return bytes(changed)
