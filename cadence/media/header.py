"""What a picture's first bytes say: its format, and mostly its size, before a library reads the file."""

from __future__ import annotations

import struct

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)  # fmt: skip
FORMATS = ("png", "jpeg", "webp", "gif", "bmp", "tiff")
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG markers that begin a frame
_ALONE = {0x01, *range(0xD0, 0xD9)}  # JPEG markers without a segment

Size = tuple[int, int]  # width, height


def format_of(head: bytes) -> str:
    """As Pillow calls it; "" = none that is read here."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


def size_in(data: bytes, name: str) -> Size | None:
    """None where the header is cut short, or is not of the plain kind: the library says more."""
    try:
        return _READERS[name](data) if name in _READERS else None
    except (struct.error, IndexError):
        return None


def looks_like_svg(head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return text.startswith((b"<svg", b"<?xml", b"<!doctype svg"))


def num_scans(data: bytes) -> int:
    """Of a JPEG, or more: each is a pass over all pixels, and may take but ten bytes."""
    return data.count(b"\xff\xda")


def _png(data: bytes) -> Size | None:
    return struct.unpack_from(">II", data, 16) if data[12:16] == b"IHDR" else None


def _gif(data: bytes) -> Size | None:
    return struct.unpack_from("<HH", data, 6)


def _bmp(data: bytes) -> Size | None:
    if struct.unpack_from("<I", data, 14)[0] == 12:
        return struct.unpack_from("<HH", data, 18)
    width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _jpeg(data: bytes) -> Size | None:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + max(struct.unpack_from(">H", data, at + 2)[0], 2)
    return None


_READERS = {"PNG": _png, "GIF": _gif, "BMP": _bmp, "WEBP": _webp, "JPEG": _jpeg}
