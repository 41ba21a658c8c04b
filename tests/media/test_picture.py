"""Pictures in every form are the pixels that transformers sees: RGB, over white, upright."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_transforms import convert_to_rgb

from cadence.core.errors import InvalidRequestError
from cadence.media.as_media import as_picture
from cadence.media.picture import Picture
from tests.media.pictures import FORMATS, encoded, moving, picture, pixels

RGBA = np.random.default_rng(3).integers(0, 256, (33, 47, 4), dtype=np.uint8)
MODES = {
    "RGB": Image.fromarray(RGBA[..., :3]),
    "RGBA": Image.fromarray(RGBA),
    "LA": Image.fromarray(RGBA).convert("LA"),
    "L": Image.fromarray(RGBA[..., 0]),
    "1": Image.fromarray(RGBA[..., 0]).convert("1"),
    "P": Image.fromarray(RGBA[..., :3]).quantize(16),
    "PA": Image.fromarray(RGBA).convert("PA"),
    "CMYK": Image.fromarray(RGBA[..., :3]).convert("CMYK"),
    "YCbCr": Image.fromarray(RGBA[..., :3]).convert("YCbCr"),
    "HSV": Image.fromarray(RGBA[..., :3]).convert("HSV"),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_pillow(mode: str) -> None:
    expected = convert_to_rgb(MODES[mode], return_numpy=True)
    np.testing.assert_array_equal(as_picture(MODES[mode], "x").pixels_np, expected)


def test_a_palette_with_a_transparent_colour() -> None:
    image = MODES["P"].copy()
    image.info["transparency"] = 3
    found = as_picture(image, "x").pixels_np
    np.testing.assert_array_equal(found, convert_to_rgb(image, return_numpy=True))
    assert (found[np.asarray(image) == 3] == 255).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "CMYK"])
def test_formats(name: str, mode: str) -> None:
    try:
        data = encoded(MODES[mode], name)
    except (OSError, ValueError):
        pytest.skip(f"{name} has no {mode}")
    expected = convert_to_rgb(Image.open(io.BytesIO(data)), return_numpy=True)
    np.testing.assert_array_equal(as_picture(data, "x").pixels_np, expected)


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_moving_pictures_the_first_frame_is_seen(name: str) -> None:
    if name == "GIF":  # of few colours
        expected = convert_to_rgb(Image.open(io.BytesIO(moving(name))), return_numpy=True)
    else:
        expected = pixels()
    np.testing.assert_array_equal(as_picture(moving(name), "x").pixels_np, expected)


def test_16_bits_become_the_upper_8() -> None:
    wide = Image.fromarray(RGBA[..., 0].astype(np.uint16) * 257)
    for data in (encoded(wide, "PNG"), encoded(wide, "TIFF")):
        np.testing.assert_array_equal(as_picture(data, "x").pixels_np[..., 1], RGBA[..., 0])


def test_a_camera_that_was_turned() -> None:
    turned = Image.new("RGB", (4, 2))
    exif = turned.getexif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        data = encoded(Image.fromarray(pixels(6, 4)), "PNG", exif=exif)
        shape = as_picture(data, "x").pixels_np.shape
        assert shape == ((4, 6, 3) if orientation < 5 else (6, 4, 3))
    exif[0x0112] = 3
    found = as_picture(encoded(Image.fromarray(pixels(6, 4)), "PNG", exif=exif), "x").pixels_np
    np.testing.assert_array_equal(found, pixels(6, 4)[::-1, ::-1])


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_words_about_a_camera_change_nothing() -> None:
    data = encoded(Image.fromarray(pixels()), "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(as_picture(data, "x").pixels_np, pixels())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pixels(), pixels()),
        (pixels()[..., 0], np.repeat(pixels()[..., :1], 3, axis=2)),
        (pixels()[..., :1], np.repeat(pixels()[..., :1], 3, axis=2)),
        (pixels() / 255, pixels()),
        ((pixels() / 255).astype(np.float32), pixels()),
        (RGBA, convert_to_rgb(RGBA, return_numpy=True, input_data_format="channels_last")),
    ],
)  # fmt: skip
def test_arrays(given: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(as_picture(given, "x").pixels_np, expected)


@pytest.mark.parametrize(
    "value",
    [
        3, None, "missing.png", np.zeros((3, 4, 5), np.uint8), np.zeros((2, 3, 4, 3), np.uint8),
        np.full((4, 4, 3), 2.0), np.full((4, 4, 3), -0.1), np.full((4, 4, 3), np.nan), np.zeros((4, 4, 3), np.int32),
        np.zeros((0, 4, 3), np.uint8), np.zeros((1, 500, 3), np.uint8), [[1, 2]], object(), Path("/"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_named(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="part") as caught:
        as_picture(value, "part")
    assert caught.value.field == "part"


def test_the_same_pixels_have_the_same_digest_however_they_came(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(picture())
    values: list[Any] = [picture(), bytearray(picture()), picture("BMP"), path, str(path), pixels()]
    values.append(Image.fromarray(pixels()))
    digests = {as_picture(value, "x").digest for value in values}
    assert len(digests) == 1
    other = pixels().reshape(40, 30, 3)
    assert as_picture(other, "x").digest not in digests and as_picture(pixels(seed=2), "x").digest not in digests
    assert as_picture(pixels(), "x", digest="mine").digest == "mine"
    own = Picture.of(pixels())
    assert as_picture(own, "x") is own
