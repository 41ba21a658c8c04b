"""Files of pictures and videos, good and bad, made on the spot."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def pixels(width: int = 40, height: int = 30, seed: int = 1) -> np.ndarray:
    """[height, width, 3] uint8"""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(picture: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, name, **options)
    return file.getvalue()


@cache
def picture(name: str = "PNG", width: int = 40, height: int = 30, seed: int = 1) -> bytes:
    return encoded(Image.fromarray(pixels(width, height, seed)), name)


def moving(name: str) -> bytes:
    """Three frames; the first is that of seed 1."""
    first, *others = (Image.fromarray(pixels(seed=seed)) for seed in (1, 2, 3))
    return encoded(first, name, save_all=True, append_images=others, lossless=True)


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@cache
def video(container: str = "mp4", codec: str = "mpeg4", frames: int = 20, width: int = 64, height: int = 48) -> bytes:
    """25 frames a second; frame n is of the grey 10 n."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as made:
        stream: Any = made.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            frame_np = np.full((height, width, 3), number * 10 % 256, np.uint8)
            made.mux(stream.encode(av.VideoFrame.from_ndarray(frame_np, format="rgb24")))
        made.mux(stream.encode())
    return file.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_of_size(width: int, height: int, rows: int | None = None) -> bytes:
    """One bit a pixel, all black; `rows` of them are there."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    count = min(height, 8) if rows is None else rows
    data = zlib.compress(bytes((1 + (width + 7) // 8) * count), 9)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def gif_of_size(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x44\x01\x00;"


def jpeg_of_size(width: int, height: int) -> bytes:
    data = bytearray(picture("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_of_size(width: int, height: int) -> bytes:
    """An extended header before a small picture."""
    inner = picture("WEBP")[12:]
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + sizes + inner
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def webp_lossless_of_size(width: int, height: int) -> bytes:
    data = bytearray(encoded(Image.fromarray(pixels()), "WEBP", lossless=True))
    kept = struct.unpack_from("<I", data, 21)[0] & 0xF0000000
    struct.pack_into("<I", data, 21, kept | (width - 1) | (height - 1) << 14)
    return bytes(data)


def bmp_of_size(width: int, height: int) -> bytes:
    data = bytearray(picture("BMP"))
    struct.pack_into("<ii", data, 18, width, height)
    return bytes(data)


def tiff_of_size(width: int, height: int) -> bytes:
    data = bytearray(encoded(Image.fromarray(pixels()), "TIFF", compression="tiff_deflate"))
    at = struct.unpack_from("<I", data, 4)[0]
    for number in range(struct.unpack_from("<H", data, at)[0]):
        entry = at + 2 + 12 * number
        tag = struct.unpack_from("<H", data, entry)[0]
        if tag in (256, 257):
            struct.pack_into("<HHII", data, entry, tag, 4, 1, width if tag == 256 else height)
    return bytes(data)


def jpeg_of_scans(count: int) -> bytes:
    """A progressive picture with its last scan again and again."""
    data = encoded(Image.fromarray(pixels()), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    scan = data[last:-2]
    return data[:last] + scan * count + data[-2:]
