"""The pictures, videos and sounds in the messages of a chat, taken out: `{"type": "image"}` is left in their places.

| part | where its picture is |
|---|---|
| `{"type": "image_url", "image_url": {"url": …}}` | a URL; also as a string, also without a type |
| `{"type": "input_image", "image_url": …}` | the same |
| `{"type": "image", "image": …}`, also `"url"` | a URL; in Python a picture of Pillow's, an array, bytes or a `Path` |
| `{"type": "image_pil", "image_pil": …}` | in Python, a picture of Pillow's |
| `{"type": "image", "media": MediaPart(…)}` | read by a protocol of its own |
| `{"type": "video_url", "video_url": …}`, `{"type": "video", "video": …}` | as pictures |
| any of these with a `"uuid"`, and null or nothing in place of the medium | what was sent before under that name |
| `{"type": "input_audio", "input_audio": {"data": …, "format": "wav"}}` | in base64 |
| `{"type": "audio_url", "audio_url": …}`, `{"type": "audio", "audio": …}` | as pictures; in Python (samples, rate) |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO
from cadence.media.parts import KINDS, MediaPart

MEDIA = "media"  # key of a part that is a `MediaPart` already
_WHERE, _NAME = "where", "name"
# type of a part -> the kind of medium, and the names under which it is
_PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "image_url": (IMAGE, ("image_url",)),
    "input_image": (IMAGE, ("image_url",)),
    "image_pil": (IMAGE, ("image_pil",)),
    "image": (IMAGE, ("image", "image_url", "url", "path")),
    "video_url": (VIDEO, ("video_url",)),
    "input_video": (VIDEO, ("video_url",)),
    "video": (VIDEO, ("video", "video_url", "url", "path")),
    "input_audio": (AUDIO, ("input_audio",)),
    "audio_url": (AUDIO, ("audio_url",)),
    "audio": (AUDIO, ("audio", "audio_url", "url", "path")),
}
MOST_UUID = 256  # characters
_SCHEMES = ("data:", "http:", "https:", "file:")

Messages = list[dict[str, Any]]


def split_media(
    messages: Sequence[Any], kinds: Collection[str] = KINDS, values: bool = False
) -> tuple[Messages, tuple[MediaPart, ...]]:
    """The messages without their media, and these in order. What is wrong otherwise is left as it is, to be found where
    messages are checked. kinds: that the model sees; values: media may be Python's objects and not URLs alone."""
    splitter = _Splitter(kinds, values)
    cleaned = [splitter.split(message, f"messages[{number}]") for number, message in enumerate(messages)]
    return cleaned, tuple(splitter.found)


def medium_part(medium: MediaPart, where: str, name: str) -> dict[str, Any]:
    """A part of a message, for `split_media`. where: the part of the request, which calls it `name`"""
    return {"type": medium.kind, MEDIA: medium, _WHERE: where, _NAME: name}


class _Splitter:
    def __init__(self, kinds: Collection[str], values: bool) -> None:
        self.found: list[MediaPart] = []
        self._kinds = kinds
        self._values = values

    def split(self, message: Any, where: str) -> Any:
        content = _content(message)
        if not any(_type(part) in _PARTS for part in content):
            return message
        parts = [self._taken(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        return {**message, "content": parts}

    def _taken(self, part: Any, where: str) -> Any:
        name = _type(part)
        if name not in _PARTS:
            return part
        kind, keys = _PARTS[name]
        medium = part.get(MEDIA)
        if isinstance(medium, MediaPart):
            self._check_kind(kind, part[_NAME], part[_WHERE])
        else:
            self._check_kind(kind, name, where)
            medium = self._medium(part, kind, keys, where)
        self.found.append(medium)
        return {"type": kind}

    def _check_kind(self, kind: str, name: str, where: str) -> None:
        if kind not in self._kinds:
            known = " and ".join(("text", *self._kinds))
            message = f"{where}.type is {name!r}: only {known} parts are supported by this model"
            raise InvalidRequestError(message, f"{where}.type")

    def _medium(self, part: Mapping[str, Any], kind: str, keys: Sequence[str], where: str) -> MediaPart:
        uuid = _uuid(part, where)
        key = next((key for key in keys if part.get(key) is not None), "")
        if not key and uuid:
            return MediaPart(kind, where, uuid=uuid)
        if not key:
            raise _without_content(part, keys[0], where)
        given, where = part[key], f"{where}.{key}"
        if isinstance(given, Mapping):
            uuid = uuid or _uuid(given, where)
            if "data" in given and kind == AUDIO:
                return MediaPart(kind, f"{where}.data", _data_url(given, where), uuid=uuid)
            given, where = given.get("url"), f"{where}.url"
        if isinstance(given, str):
            return replace(_of_text(given, kind, where), uuid=uuid)
        if given is None and uuid:
            return MediaPart(kind, where, uuid=uuid)
        if not self._values or given is None:
            raise InvalidRequestError(f"{where} must be a string: a URL", where)
        return MediaPart(kind, where, value=given, uuid=uuid)


def _without_content(part: Mapping[str, Any], key: str, where: str) -> InvalidRequestError:
    if part.get("file_id") is not None:
        return InvalidRequestError(f"{where}.file_id: this server keeps no files; send a URL", f"{where}.file_id")
    return InvalidRequestError(f"{where} has no {key}, and no uuid that it was sent with before", where)


def _data_url(given: Mapping[str, Any], where: str) -> str:
    """Of `input_audio`. What is said of the format counts for nothing: the bytes say it."""
    data = given["data"]
    if not isinstance(data, str):
        raise InvalidRequestError(f"{where}.data must be a string: a file in base64", f"{where}.data")
    return f"data:audio/any;base64,{data}"


def _of_text(given: str, kind: str, where: str) -> MediaPart:
    if not given[:8].lower().startswith(_SCHEMES):
        message = f"{where} must be a data:, http:, https: or file: URL; in Python, pathlib.Path names a file"
        raise InvalidRequestError(message, where)
    return MediaPart(kind, where, given)


def _uuid(part: Mapping[str, Any], where: str) -> str:
    """What a client calls a part, by which it can be shown again; "" = nothing."""
    uuid = part.get("uuid")
    if uuid is not None and not (isinstance(uuid, str) and len(uuid) <= MOST_UUID):
        message = f"{where}.uuid must be a string of at most {MOST_UUID} characters"
        raise InvalidRequestError(message, f"{where}.uuid")
    return uuid or ""


def _content(message: Any) -> Sequence[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()


def _type(part: Any) -> str:
    """ "" = of no kind that is known here."""
    if not isinstance(part, Mapping):
        return ""
    kind = part.get("type")
    if kind is None and "text" not in part:
        kind = next((name for name in ("image_url", "video_url", "input_audio", "audio_url") if name in part), None)
    return kind if isinstance(kind, str) else ""
