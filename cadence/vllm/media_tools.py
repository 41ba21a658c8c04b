"""Pictures, videos and recordings in the hands of scripts for vLLM: from URLs, and as other pictures.

A program that names a URL itself is given what lies there: from this machine, or from any host whose addresses are
public.
"""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO
from cadence.media.fetch.read_url import UrlReader
from cadence.media.fetch.reader import MediaReader
from cadence.media.io_options import sampling_of
from cadence.media.library import pillow
from cadence.media.limits import DEFAULT_LIMITS, MediaAccess
from cadence.media.parts import MediaPart
from cadence.media.picture import Picture
from cadence.media.sound import Sound
from cadence.media.video import Video

_ACCESS = MediaAccess(domains=frozenset({"*"}), local_root=Path("/"))


def fetch_image(image_url: str, image_io_kwargs: dict[str, Any] | None = None) -> Any:
    """A picture of Pillow's, RGB."""
    medium = _fetched(IMAGE, image_url, image_io_kwargs)
    assert isinstance(medium, Picture)
    return pillow("image_url").fromarray(medium.pixels_np)


def fetch_video(
    video_url: str, video_io_kwargs: dict[str, Any] | None = None
) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Frames [n, H, W, 3], and when they are shown."""
    medium = _fetched(VIDEO, video_url, video_io_kwargs)
    assert isinstance(medium, Video)
    return medium.frames_np, {"total_num_frames": len(medium.times), "times": list(medium.times)}


def fetch_audio(audio_url: str, audio_io_kwargs: dict[str, Any] | None = None) -> tuple[npt.NDArray[np.float32], int]:
    """Samples [n] of one channel, and how many a second has."""
    medium = _fetched(AUDIO, audio_url, audio_io_kwargs)
    assert isinstance(medium, Sound)
    return medium.samples_np, medium.rate


def _fetched(kind: str, url: str, io_kwargs: dict[str, Any] | None) -> Any:
    if kind != VIDEO and io_kwargs:
        raise InvalidRequestError(f"{kind}_io_kwargs are not known: {', '.join(io_kwargs)}", f"{kind}_io_kwargs")
    reader = MediaReader(DEFAULT_LIMITS, UrlReader(DEFAULT_LIMITS, _ACCESS), sampling_of({VIDEO: io_kwargs or {}}))
    return reader.read([MediaPart(kind, f"{kind}_url", url)])[kind][0]


def convert_image_mode(image: Any, to_mode: str, background_color: Any = (255, 255, 255)) -> Any:
    """As Pillow converts it, but that what is transparent is put over a colour."""
    if image.mode == to_mode:
        return image
    clear = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return (
        rgba_to_rgb(image.convert("RGBA"), background_color) if to_mode == "RGB" and clear else image.convert(to_mode)
    )


def rgba_to_rgb(image: Any, background_color: Any = (255, 255, 255)) -> Any:
    behind = pillow("image").new("RGB", image.size, tuple(background_color))
    behind.paste(image, mask=image.getchannel("A"))
    return behind


def rescale_image_size(image: Any, size_factor: float, transpose: int = -1) -> Any:
    resized = image.resize((int(image.width * size_factor), int(image.height * size_factor)))
    return resized.transpose(pillow("image").Transpose(transpose)) if transpose >= 0 else resized


def encode_image_base64(image: Any, *, image_mode: str = "RGB", format: str = "PNG") -> str:
    file = BytesIO()
    convert_image_mode(image, image_mode).save(file, format)
    return base64.b64encode(file.getvalue()).decode()


def encode_image_url(image: Any, *, image_mode: str = "RGB", format: str = "PNG") -> str:
    return f"data:image/{format.lower()};base64,{encode_image_base64(image, image_mode=image_mode, format=format)}"
