"""A file's bytes -> a picture. Untrusted input: what it is, its first bytes say, and Pillow may try nothing else.

The size is checked by the header, before Pillow opens the file (some of its plugins reserve memory for all pixels when
they do), once more by what Pillow says before it decodes, and by what came of it.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE
from cadence.core.shown import cut
from cadence.media.header import FORMATS, format_of, looks_like_svg, num_scans, size_in
from cadence.media.library import pillow
from cadence.media.limits import DEFAULT_LIMITS, MediaLimits
from cadence.media.picture import Picture, Pixels

READ = f"{', '.join(FORMATS[:-1])} and {FORMATS[-1]}"
_MOST_SCANS = 200  # of a progressive JPEG; encoders write about ten
_WHITE = (255, 255, 255, 255)
_WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")  # modes of one channel with more than 8 bits


def decode_picture(
    data: bytes, where: str, limits: MediaLimits = DEFAULT_LIMITS, digest: str = "", num_pixels: int = 0
) -> Picture:
    """The first frame of one that moves. where: the part of the request that holds it; num_pixels: that the prompt has
    before it."""
    limits.check_bytes(IMAGE, len(data), where)
    name = _format(data, where)
    if size := size_in(data, name):
        limits.check_size(*size, where)
        limits.check_total(num_pixels + size[0] * size[1], where)
    if name == "JPEG" and num_scans(data) > _MOST_SCANS:
        raise InvalidRequestError(f"{where}: the picture has more than {_MOST_SCANS} scans", where)
    image = pillow(where)
    try:
        with image.open(io.BytesIO(data), formats=[name]) as opened:
            limits.check_total(num_pixels + opened.size[0] * opened.size[1], where)
            return Picture.of(upright_rgb(opened, where, limits), digest)
    except InvalidRequestError:
        raise
    except Exception as error:  # plugins fail in many ways on damaged files
        reason = cut(str(error) or type(error).__name__).rstrip(".")
        raise InvalidRequestError(f"{where}: the {name.lower()} file cannot be decoded: {reason}", where) from None


def upright_rgb(opened: Any, where: str, limits: MediaLimits) -> Pixels:
    """A picture of Pillow's -> [H, W, 3], turned as its camera was held, over white where it is transparent."""
    image = pillow(where)
    width, height = opened.size
    limits.check_size(width, height, where)
    opened.load()
    upright = _upright(opened)
    if upright.mode in _WIDE:
        upright = _narrowed(image, upright)
    if "A" in upright.getbands() or "a" in upright.getbands() or upright.info.get("transparency") is not None:
        over = upright.convert("RGBA")
        upright = image.alpha_composite(image.new("RGBA", over.size, _WHITE), over)
    made_np = np.asarray(upright.convert("RGB"))
    limits.check_size(made_np.shape[1], made_np.shape[0], where)
    return made_np


def _upright(opened: Any) -> Any:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(opened)
    except Exception:  # what it says of its camera is damaged, its pixels are not
        return opened


def _narrowed(image: Any, wide: Any) -> Any:
    """Pillow cuts values of more bits off at 255. 16 bits become the upper 8; floats count from 0 to 1."""
    values_np = np.asarray(wide)
    if values_np.dtype.kind == "f":
        values_np = np.nan_to_num(values_np) * 255
    elif values_np.max(initial=0) > 255:
        values_np = values_np / 257
    return image.fromarray(np.rint(np.clip(values_np, 0, 255)).astype(np.uint8))


def _format(data: bytes, where: str) -> str:
    if name := format_of(data[:16]):
        return name
    if looks_like_svg(data[:256]):
        raise InvalidRequestError(f"{where}: SVG is not read, which is a program that draws; send {READ}", where)
    raise InvalidRequestError(f"{where}: this is no picture of a format that is read here: {READ}", where)
