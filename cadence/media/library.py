"""Pillow, which reads pictures, and PyAV (FFmpeg's libraries), which reads videos: imported when first needed."""

from __future__ import annotations

from typing import Any

from cadence.core.errors import InvalidRequestError

_EXTRA = "pip install 'cadence-llm[media]'"


def pillow(where: str) -> Any:
    """The module `PIL.Image`, with the plugins of the formats that are read here and no others."""
    try:
        from PIL import (  # noqa: F401
            BmpImagePlugin,
            GifImagePlugin,
            Image,
            JpegImagePlugin,
            PngImagePlugin,
            TiffImagePlugin,
            WebPImagePlugin,
        )
    except ImportError:
        raise InvalidRequestError(f"{where}: reading pictures needs the package pillow: {_EXTRA}", where) from None
    return Image


def pyav(where: str) -> Any:
    try:
        import av
    except ImportError:
        raise InvalidRequestError(f"{where}: reading videos needs the package av: {_EXTRA}", where) from None
    av.logging.set_level(av.logging.PANIC)  # what it has to say comes as exceptions
    return av
