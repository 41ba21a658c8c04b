"""data: URLs. Their length is checked before they are decoded."""

from __future__ import annotations

import base64
import binascii

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO
from cadence.core.shown import shown
from cadence.media.decode import READ
from cadence.media.limits import MediaLimits
from cadence.media.parts import MediaPart

DATA = "data"
_MAX_HEAD = 256  # characters before the comma
_NEVER = {IMAGE: ("audio", "text", "video"), VIDEO: ("audio", "text"), AUDIO: ("image", "text")}  # beginnings of types
_FRAMES = "video/jpeg"  # a video as pictures, base64 each, with commas between


def read_data_url(part: MediaPart, limits: MediaLimits) -> list[bytes]:
    where = part.where
    comma = part.url.find(",", 0, _MAX_HEAD)
    if comma < 0:
        raise InvalidRequestError(f"{where}: a data URL must look like data:image/png;base64,...", where)
    media_type, *options = part.url[len(DATA) + 1 : comma].split(";")
    _check_type(part.kind, media_type.strip().lower(), where)
    if "base64" not in [option.strip().lower() for option in options]:
        raise InvalidRequestError(f"{where}: a data URL must be in base64: data:image/png;base64,...", where)
    if part.kind == VIDEO and media_type.strip().lower() == _FRAMES:
        return _frames(part.url[comma + 1 :], where, limits)
    return [_decoded(part.url[comma + 1 :], part.kind, where, limits)]


def _frames(text: str, where: str, limits: MediaLimits) -> list[bytes]:
    count = text.count(",") + 1
    if count > limits.video_frames:
        raise InvalidRequestError(f"{where}: a video must have at most {limits.video_frames} frames", where)
    if len(text) > _most_text(limits.video_bytes):
        limits.check_bytes(VIDEO, len(text) * 3 // 4, where)
    return [_decoded(frame, IMAGE, where, limits) for frame in text.split(",")]


def _decoded(text: str, kind: str, where: str, limits: MediaLimits) -> bytes:
    if len(text) > _most_text(limits.bytes_of(kind)):
        limits.check_bytes(kind, len(text) * 3 // 4, where)
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        reason = "it has other characters" if isinstance(error, UnicodeEncodeError) else str(error).rstrip(".").lower()
        raise InvalidRequestError(f"{where}: the data is not base64: {reason}", where) from None
    limits.check_bytes(kind, len(data), where)
    return data


def _most_text(num_bytes: int) -> int:
    return (num_bytes + 2) // 3 * 4


def _check_type(kind: str, media_type: str, where: str) -> None:
    """The bytes say what they are; a type that cannot be meant is told so."""
    if media_type.startswith("image/svg"):
        raise InvalidRequestError(f"{where}: SVG is not read, which is a program that draws; send {READ}", where)
    own = media_type.partition("/")[0]
    if own in _NEVER[kind]:
        wanted = {IMAGE: "a picture", VIDEO: "a video", AUDIO: "a sound"}[kind]
        raise InvalidRequestError(f"{where} must be {wanted}; the data URL says {shown(media_type)}", where)
