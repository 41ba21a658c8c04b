"""Hostile forms: every field that the schema of a form names, with every value, and framing that no client sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.hostile.case import Case
from tests.hostile.schema import resolve
from tests.hostile.values import NUMBERS, STRINGS
from tests.hostile.wire import Request

BOUNDARY = "x-boundary"
FORM = "multipart/form-data"
FILE = "file"
MAX_PART = 2**16  # bytes of a field that a server reads

Part = tuple[str, bytes]  # head, content

RAW = {
    "not utf-8": b"\xff\xfe\xfd",
    "utf-8 surrogate": b"\xed\xa0\x80",
    "nul": b"a\0b",
    "a boundary": b"--x-boundaryx",
    "a line of a head": b"\r\ncontent-type: text/plain\r\n\r\n",
    "as long as it may be": b"x" * MAX_PART,
    "too long": b"x" * (MAX_PART + 1),
    "JSON": b'["word", "segment"]',
}
WORDS = (b"true", b"false", b"word", b"segment", b"verbose_json", b"srt", b"en", b"xx", b"English")
CHARSETS = (
    *("utf-8", "UTF8", "us-ascii", "latin-1", "utf-16", "utf-7", "utf_8_sig", "cp037", "shift_jis", "punycode", "idna"),
    *("undefined", "unicode_escape", "raw_unicode_escape", "rot13", "base64", "zlib", "hex", "mbcs", "", "a" * 500),
)
DISPOSITIONS = {
    "no name": "form-data",
    "an empty name": 'form-data; name=""',
    "a name of NUL": 'form-data; name="a\0b"',
    "a long name": f'form-data; name="{"n" * 9000}"',
    "an unclosed name": 'form-data; name="prompt',
    "two names": 'form-data; name="prompt"; name="seed"',
    "another kind": 'attachment; name="prompt"',
    "a file that is no file": 'form-data; name="prompt"; filename="a.txt"',
    "a path": 'form-data; name="file"; filename="../../etc/passwd"',
    "a coded name": "form-data; name*=utf-8''prompt",
}


def field(name: str, content: bytes) -> Part:
    return f'Content-Disposition: form-data; name="{name}"', content


def recording(content: bytes) -> Part:
    return f'Content-Disposition: form-data; name="{FILE}"; filename="a.wav"', content


def body(parts: list[Part]) -> bytes:
    start = f"--{BOUNDARY}\r\n".encode()
    framed = [start + head.encode() + b"\r\n\r\n" + content + b"\r\n" for head, content in parts]
    return b"".join([*framed, f"--{BOUNDARY}--\r\n".encode()])


class FormCases:
    """`document`: the server's OpenAPI document. `sound`: a recording that is read."""

    def __init__(self, document: Mapping[str, Any], sound: bytes) -> None:
        self.fields = dict(_forms(document))
        self._sound = recording(sound)

    def of_fields(self) -> Iterator[Case]:
        """Each once, twice and as a list."""
        for path, names in self.fields.items():
            for name in sorted({*names, "unknown", "n", "chunking_strategy", "include"} - {FILE}):
                for what, content in values():
                    yield self._case(path, f"{name} = {what}", [field(name, content)])
                yield self._case(path, f"{name} twice", [field(name, b"1"), field(name, b"2")])
                yield self._case(path, f"{name} as a list", [field(f"{name}[]", b"1"), field(f"{name}[]", b"2")])

    def of_framing(self) -> Iterator[Case]:
        for path in self.fields:
            for charset in CHARSETS:
                for content in (b"\\ud800", b"b" * 60_000, b"a-\xff"):
                    name = f"charset {charset[:20]}, {content[:5]!r}"
                    parts = [self._sound, *[field(f"f{n}", content) for n in range(3)]]
                    yield _case(path, name, body(parts), f"{FORM}; boundary={BOUNDARY}; charset={charset}")
            for what, disposition in DISPOSITIONS.items():
                yield self._case(path, what, [(f"Content-Disposition: {disposition}", b"a")])
            whole = body([self._sound, field("prompt", b"a")])
            for what, kind in (("no boundary", FORM), ("another", f"{FORM}; boundary=y"), ("none", "text/plain")):
                yield _case(path, f"boundary: {what}", whole, kind)
            yield _case(path, "no end", whole[:-6], f"{FORM}; boundary={BOUNDARY}")
            yield _case(path, "no form", b"{}" * 100, f"{FORM}; boundary={BOUNDARY}")
            yield _case(path, "nothing", b"", f"{FORM}; boundary={BOUNDARY}")
            yield self._case(path, "many fields", [field(f"f{n}", b"a") for n in range(500)])
            yield self._case(path, "many files", [self._sound] * 3)
            yield self._case(path, "many heads", [("\r\n".join(["X-A: b"] * 5000), b"a")])

    def _case(self, path: str, name: str, parts: list[Part]) -> Case:
        return _case(path, name, body([self._sound, *parts]), f"{FORM}; boundary={BOUNDARY}")


def values() -> Iterator[tuple[str, bytes]]:
    yield from ((f"number {text[:24]}", text.encode()) for text in NUMBERS)
    yield from ((f"string {name}", text.encode()) for name, text in STRINGS.items())
    yield from RAW.items()
    yield from ((f"word {word.decode()}", word) for word in WORDS)


def _forms(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            form = operation.get("requestBody", {}).get("content", {}).get(FORM)
            if form:
                yield path, [*resolve(form["schema"], document)["properties"]]


def _case(path: str, name: str, content: bytes, kind: str) -> Case:
    return Case(0, f"{path} {name}", Request("POST", path, (("content-type", kind),), content))
