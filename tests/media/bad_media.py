"""More than two hundred media that must be refused, each with the word that its error must have."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from cadence.core.inputs.media import IMAGE, VIDEO
from tests.media import pictures as made
from tests.media.pictures import FORMATS, data_url, picture, video

MOST_BYTES = 300_000  # of a file, under the limits that the tests set
MOST_PIXELS = 1_000_000
SCRIPT = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


@dataclass(frozen=True)
class Bad:
    name: str
    url: str
    word: str  # that the error has
    kind: str = IMAGE


def bad_files() -> list[tuple[str, bytes, str]]:
    """Name, content, the word."""
    return [*_bombs(), *_cut_short(), *_damaged(), *_wrong_types()]


def _bombs() -> Iterator[tuple[str, bytes, str]]:
    sizes = ((50_000, 50_000), (16_383, 16_383), (65_535, 1), (1, 65_535), (1_200, 1_000), (12_000, 30))
    for width, height in sizes:
        size = f"{width}x{height}"
        yield f"png {size}", made.png_of_size(width, height), "pixels"
        yield f"gif {size}", made.gif_of_size((width, height), (width, height)), "pixels"
        yield f"gif frame {size}", made.gif_of_size((10, 10), (width, height)), "pixels"
        yield f"jpeg {size}", made.jpeg_of_size(width, height), "pixels"
        yield f"bmp {size}", made.bmp_of_size(width, height), "pixels"
        yield f"tiff {size}", made.tiff_of_size(width, height), "pixels"
        yield f"webp {size}", made.webp_of_size(width, height), "pixels"
    for width, height in ((16_383, 16_383), (1_200, 1_000)):
        yield f"webp lossless {width}x{height}", made.webp_lossless_of_size(width, height), "pixels"
    yield "png whole of 16000x16000", made.png_of_size(16_000, 16_000, 16_000), "pixels"
    yield "bmp upside down", made.bmp_of_size(40_000, -40_000), "pixels"
    yield "bmp of negative width", made.bmp_of_size(-40, 30), "pixels"
    yield "png without pixels", made.png_of_size(0, 0, 1), "pixels"
    yield "gif without pixels", made.gif_of_size((0, 0), (0, 0)), ""
    yield "jpeg of 1000 scans", made.jpeg_of_scans(1000), "scans"
    yield "too many bytes", picture("BMP", 500, 500), "bytes"
    text = zlib.compress(bytes(80_000_000), 9)
    head, rest = picture()[:33], picture()[33:]
    yield "png with a text bomb", head + made.png_chunk(b"zTXt", b"a\0\0" + text) + rest, "decoded"


def _cut_short() -> Iterator[tuple[str, bytes, str]]:
    for name in FORMATS:
        whole = picture(name)
        for part in (0.02, 0.1, 0.3, 0.5, 0.8, 0.95):
            yield f"{name} cut at {part}", whole[: max(int(len(whole) * part), 1)], ""
    yield "empty", b"", "empty"


def _damaged() -> Iterator[tuple[str, bytes, str]]:
    for name, magic in (("PNG", 8), ("GIF", 6), ("BMP", 2), ("TIFF", 4), ("WEBP", 12), ("JPEG", 3)):
        whole = picture(name)
        yield f"{name} of zeros", whole[:magic] + bytes(2000), ""
        yield f"{name} of ones", whole[:magic] + b"\xff" * 2000, ""
        yield f"{name} head alone", whole[:magic], ""
        yield f"{name} begins late", b" " + whole, "format"
    whole = picture()
    yield "png with a wrong checksum", whole[:29] + bytes(4) + whole[33:], "decoded"
    yield "png without data", whole[:33] + made.png_chunk(b"IEND", b""), "decoded"


def _wrong_types() -> Iterator[tuple[str, bytes, str]]:
    others = {
        "pdf": b"%PDF-1.7\n", "html": b"<!DOCTYPE html><script>alert(1)</script>", "zip": b"PK\x03\x04",
        "gzip": b"\x1f\x8b\x08", "elf": b"\x7fELF", "text": b"a picture of a cat", "json": b'{"a": 1}',
        "wav": b"RIFF\0\0\0\0WAVE", "mp3": b"ID3\x04", "ico": b"\0\0\x01\0\x01\0", "psd": b"8BPS\0\x01",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n(%pipe%id) run", "ppm": b"P6 99999 99999 255\n", "icns": b"icns",
        "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n", "avif": b"\0\0\0 ftypavif", "tga": b"\0\0\x02" + bytes(15),
        "heic": b"\0\0\0 ftypheic", "fits": b"SIMPLE  =", "xbm": b"#define a_width 99999", "pcx": b"\n\x05\x01",
        "playlist": b"#EXTM3U\nfile:///etc/passwd", "pickle": b"\x80\x04\x95",
    }  # fmt: skip
    for name, head in others.items():
        yield name, head + bytes(100), "format"
    for name, text in {
        "svg": SCRIPT, "svg with a declaration": b"<?xml version='1.0'?>" + SCRIPT,
        "svg after white space": b"\n \t" + SCRIPT,
        "svg with a mark of order": b"\xef\xbb\xbf" + SCRIPT,
        "svg of a doctype": b"<!DOCTYPE svg SYSTEM 'file:///etc/passwd'>" + SCRIPT,
        "svg that fetches": b"<svg><image href='http://169.254.169.254/'/></svg>",
    }.items():  # fmt: skip
        yield name, text, "SVG"
    yield "mp4", video(), "format"


def bad_videos() -> list[tuple[str, bytes, str]]:
    found: list[tuple[str, bytes, str]] = [
        ("empty", b"", "empty"),
        ("text", b"no video at all, but long enough", "format"),
        ("playlist", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "format"),
        ("concat", b"ffconcat version 1.0\nfile /etc/passwd\n", "format"),
        ("svg", SCRIPT, "format"),
        ("wav", b"RIFF\0\0\0\0WAVEfmt ", "format"),
        ("large frames", video("mp4", "mpeg4", 2, 1600, 1200), "pixels"),
        ("many pixels together", video("mp4", "mpeg4", 20, 640, 480), "together"),
    ]
    for container in ("mp4", "matroska", "avi"):
        whole = video(container)
        found += [(f"{container} cut at {part}", whole[: int(len(whole) * part)], "") for part in (0.02, 0.2, 0.5)]
        found.append((f"{container} of zeros", whole[:16] + bytes(4000), ""))
    return found


def bad_urls() -> list[Bad]:
    """That need no network."""
    return [*_bad_data_urls(), *_bad_schemes(), *_inward()]


def _bad_data_urls() -> Iterator[Bad]:
    good = data_url(picture())
    body = good.partition(",")[2]
    for name, url, word in (
        ("no comma", "data:image/png;base64", "data URL"),
        ("nothing", "data:", "data URL"),
        ("no base64", f"data:image/png,{body}", "base64"),
        ("only a comma", "data:,", "base64"),
        ("no data", "data:image/png;base64,", "empty"),
        ("other characters", "data:image/png;base64,!!!!", "base64"),
        ("padding missing", "data:image/png;base64,AAA", "base64"),
        ("one character", "data:image/png;base64,A", "base64"),
        ("not ASCII", "data:image/png;base64,ä" + body, "base64"),
        ("a space", good[:60] + " " + good[60:], "base64"),
        ("a line break", good[:60] + "\n" + good[60:], "base64"),
        ("percent", good + "%3D", "base64"),
        ("another comma", good + "," + body, "base64"),
        ("padding inside", good[:60] + "==" + good[60:], "base64"),
        ("html", good.replace("image/png", "text/html"), "picture"),
        ("audio", good.replace("image/png", "audio/wav"), "picture"),
        ("video", good.replace("image/png", "video/mp4"), "picture"),
        ("svg", data_url(SCRIPT, "image/svg+xml"), "SVG"),
        ("svg as text", "data:image/svg+xml;utf8," + SCRIPT.decode(), "SVG"),
        ("a long head", f"data:{'a' * 400};base64,{body}", "data URL"),
        ("too large", "data:image/png;base64," + "A" * (MOST_BYTES * 2), "bytes"),
        ("hexadecimal", "data:image/png;hex,00", "base64"),
        ("urlsafe", "data:image/png;base64,_-_-", "base64"),
        ("a nul", "data:image/png;base64,\0AAA", "base64"),
    ):
        yield Bad(f"data URL: {name}", url, word)
    frames = ",".join([picture("JPEG").hex()] * 2)
    yield Bad("data URL: frames that are no base64", f"data:video/jpeg;base64,{frames}", "", VIDEO)
    yield Bad("data URL: too many frames", "data:video/jpeg;base64," + "AAAA," * 2000, "frames", VIDEO)
    yield Bad("data URL: a sound as a video", data_url(b"RIFF", "audio/wav"), "video", VIDEO)


def _bad_schemes() -> Iterator[Bad]:
    for url in (
        "", "a", "/etc/passwd", "//pictures.test/a.png", "ftp://pictures.test/a.png", "javascript:alert(1)", "gopher://a/",
        "jar:http://a!/b", "blob:http://a/b", "s3://bucket/a", "dict://localhost:11211/", "httpx://pictures.test/", "\0http://a/",
        "unix:///run/docker.sock",
    ):  # fmt: skip
        yield Bad(f"scheme: {url!r}", url, "URL")
    for url in (
        "http://", "http:///a.png", "http://[::1", "http://pictures.test:99999/", "http://pictures.test:x/",
        "http://pictures.test/\r\nX-Evil: 1", "http://pictures.test\\@127.0.0.1/", "http://a b/", "http://..test/",
        "http://user@pictures.test/", "http://" + "a" * 300 + ".test/", "http://pictures.test/" + "a" * 9000,
        "https://user:secret@pictures.test/",
    ):  # fmt: skip
        yield Bad(f"URL: {url[:40]!r}", url, "")


def _inward() -> Iterator[Bad]:
    """Addresses, as numbers: no name is looked up."""
    for host in (
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1",
        "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "224.0.0.1", "255.255.255.255", "192.0.2.1",
        "198.18.0.1", "240.0.0.1", "168.63.129.16", "192.0.0.192", "[::1]", "[::]", "[::ffff:127.0.0.1]",
        "[::ffff:169.254.169.254]", "[fe80::1]", "[fd00::1]", "[fec0::1]", "[ff02::1]", "[2002:7f00:1::]",
        "[64:ff9b::7f00:1]", "[64:ff9b:1::1]", "[2001:db8::1]", "[fd00:ec2::254]",
    ):  # fmt: skip
        yield Bad(f"inward: {host.replace('0x', 'hex ')}", f"http://{host}:9/a.png", "public")


def png_that_lies() -> bytes:
    """Its header says little, and its data are those of far more."""
    data = zlib.compress(bytes(50_000_000), 9)
    header = struct.pack(">IIBBBBB", 10, 10, 8, 2, 0, 0, 0)
    parts = (
        png for png in (made.png_chunk(b"IHDR", header), made.png_chunk(b"IDAT", data), made.png_chunk(b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
