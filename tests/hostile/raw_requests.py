"""Requests whose body, type, encoding, framing or target is wrong, whatever the fields are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from tests.hostile import large
from tests.hostile.case import Case
from tests.hostile.schema import Endpoint
from tests.hostile.seeds import HEADER_NAMES, QUERY_NAMES
from tests.hostile.values import STRINGS
from tests.hostile.wire import JSON, Request

Draw = Callable[[random.Random, bytes], bytes]

_TYPES = (
    *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/xml"),
    *("application/json; charset=utf-16", "application/json; charset=\xff", "APPLICATION/JSON"),
    *("application/vnd.a+json", "application/json;" + "x" * 2000, "application/json, text/plain", "json"),
)  # fmt: skip
_METHODS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")

# name -> the body of a request, given a valid one
BODIES: dict[str, Draw] = {
    "empty": lambda rng, good: b"",
    "one byte": lambda rng, good: rng.randbytes(1),
    "few bytes": lambda rng, good: rng.randbytes(rng.randint(2, 64)),
    "random bytes": lambda rng, good: rng.randbytes(rng.randint(65, 20000)),
    "truncated": lambda rng, good: good[: rng.randrange(len(good))],
    "garbage after": lambda rng, good: good + rng.choice((b"x", b"}", b"\0", b",{}", good, b"\n\n[")),
    "garbage before": lambda rng, good: rng.choice((b"x", b"\0", b",", b"//c\n", b")]}'\n")) + good,
    "a byte changed": lambda rng, good: _change(rng, good),
    "bytes changed": lambda rng, good: _change(rng, _change(rng, _change(rng, good))),
    "byte order mark": lambda rng, good: b"\xef\xbb\xbf" + good,
    "utf-16": lambda rng, good: good.decode().encode("utf-16"),
    "utf-16-le": lambda rng, good: good.decode().encode("utf-16-le"),
    "utf-32": lambda rng, good: good.decode().encode("utf-32"),
    "latin-1": lambda rng, good: good.replace(b"hello", b"h\xe9llo\xff"),
    "single quotes": lambda rng, good: good.replace(b'"', b"'"),
    "a list": lambda rng, good: b"[" + good + b"]",
    "a string": lambda rng, good: json.dumps(good.decode()).encode(),
    "a number": lambda rng, good: rng.choice((b"1", b"-0", b"1e400", b"9" * 5000)),
    "null": lambda rng, good: rng.choice((b"null", b"true", b"NaN", b"Infinity", b"undefined")),
    "empty object": lambda rng, good: b"{}",
    "comments": lambda rng, good: b"/* a */" + good + b"// b",
    "white space around": lambda rng, good: b" \t\r\n" * 500 + good + b" \n" * 500,
    "doubled": lambda rng, good: b"{" + good[1:-1] + b"," + good[1:-1] + b"}",
    "keys in capitals": lambda rng, good: json.dumps({k.title(): v for k, v in json.loads(good).items()}).encode(),
    "gzip": lambda rng, good: b"\x1f\x8b\x08" + rng.randbytes(100),
}


def body_case(number: int, endpoint: Endpoint, good: bytes, rng: random.Random) -> Case:
    name = rng.choice(tuple(BODIES))
    request = Request("POST", endpoint.path, body=BODIES[name](rng, good), chunk=rng.choice((0, 0, 1, 7, 1000)))
    return Case(number, f"{endpoint} body: {name}", request)


def framing_case(number: int, endpoint: Endpoint, good: bytes, rng: random.Random) -> Case:
    """Types, lengths, methods, encodings."""
    path = endpoint.path
    draw = rng.randrange(8)
    if draw == 0:
        kind = rng.choice(_TYPES)
        headers = (("content-type", kind),) if kind else ()
        return Case(number, f"{endpoint} content-type {kind[:60]!r}", Request("POST", path, headers, good))
    if draw == 1:
        coding = rng.choice(("gzip", "deflate", "br", "identity", "x" * 3000))
        headers = (JSON, ("content-encoding", coding))
        return Case(number, f"{endpoint} content-encoding {coding[:20]}", Request("POST", path, headers, good))
    if draw == 2:
        length = rng.choice((len(good) + 10, 2**31, 2**63, 10**30))
        request = Request("POST", path, body=good, declared=str(length), half=True)
        return Case(number, f"{endpoint} content-length {length}, and less is sent", request)
    if draw == 3:
        wrong = rng.choice(("-1", "abc", "1e3", "+5", "", "1, 2", " 5 5", "0x10"))
        request = Request("POST", path, body=good, declared=wrong)
        return Case(number, f"{endpoint} content-length {wrong!r}", request, is_http=False)
    if draw == 4:
        headers = (JSON, ("transfer-encoding", "chunked"))
        request = Request("POST", path, headers, body=b"%b\r\n" % rng.choice((b"zz", b"-5", b"f" * 40)), declared="5")
        return Case(number, f"{endpoint} bad chunks", request, is_http=False)
    if draw == 5:
        method = rng.choice(_METHODS)
        name = f"{method} {path} instead of {endpoint.method}"
        return Case(number, name, Request(method, path, body=good), is_http=method != "BREW")
    if draw == 6:
        request = Request("POST", path, (JSON, ("connection", "close")), good, declared=str(len(good) // 2))
        return Case(number, f"{endpoint} content-length of half the body", request)
    size = large.LIMIT + rng.choice((1, 1000, 2**20))
    request = Request("POST", path, body=b'{"prompt":"' + b"a" * (size - 13) + b'"}', chunk=rng.choice((0, 2**16)))
    return Case(number, f"{endpoint} body above the limit", request)


def head_case(number: int, endpoint: Endpoint, good: bytes, rng: random.Random) -> Case:
    """Headers the server reads, too many of them, or too large ones."""
    draw = rng.randrange(4)
    if draw == 0:
        headers: list[tuple[str, str]] = [(f"x-{n}", "a") for n in range(rng.choice((100, 127, 200, 2000)))]
    elif draw == 1:
        headers = [("x-long", "a" * rng.choice((1000, 60_000, 70_000, 500_000)))]
    else:
        headers = [(rng.choice(HEADER_NAMES), _header_value(rng)) for _ in range(rng.randint(1, 3))]
    request = Request("POST", endpoint.path, (JSON, *headers), good)
    names = ", ".join(f"{name}={value[:20]!r}" for name, value in headers[:3])
    return Case(number, f"{endpoint} headers {names} ({len(headers)})", request, is_http=_is_http(headers))


def target_case(number: int, endpoint: Endpoint, known: Sequence[str], rng: random.Random) -> Case:
    """Path and query parameters. `known`: values for a path parameter that lead somewhere."""
    value = rng.choice((*known, *STRINGS.values(), "9" * 3000, ".", "..", "%00", "%ff%fe", "%", "a/b", "😀"))
    path = endpoint.path
    if "{" in path:
        prefix, _, rest = path.partition("{")
        path = prefix + (value if rng.random() < 0.1 and _is_plain(value) else _quoted(value)) + rest.partition("}")[2]
    names = rng.sample(QUERY_NAMES, rng.randint(0, 2))
    query = "&".join(f"{name}={_quoted(rng.choice(_query_values()))}" for name in names)
    target = f"{path}?{query}" if query else path
    body = rng.choice((b"", b"", b"{}", b"[1]", rng.randbytes(30)))
    headers = (JSON,) if body or endpoint.method == "POST" else ()
    return Case(number, f"{endpoint.method} {target[:120]}", Request(endpoint.method, target, headers, body))


def _change(rng: random.Random, good: bytes) -> bytes:
    place = rng.randrange(len(good))
    return (
        good[:place] + rng.choice((b"", rng.randbytes(1), b'"', b"{", b"]", b"\\", b",", b"9" * 50)) + good[place + 1 :]
    )


def _query_values() -> tuple[str, ...]:
    return ("", "0", "-1", "1", "100", "101", str(2**63), "9" * 5000, "٣", "asc", "true", "NaN", " ", "a" * 3000, "%00")


def _header_value(rng: random.Random) -> str:
    return rng.choice(("", "0", "-1", "1e3", str(2**31), str(2**64), "9" * 5000, "NaN", "Bearer x", "Basic !!!",
                       "text/html", "x" * 200, "../..", "%s", "a\tb", "é", "100-continue", "7 7"))  # fmt: skip


def _is_http(headers: Sequence[tuple[str, str]]) -> bool:
    """An expectation other than 100-continue or bytes above 127 may be refused by the HTTP layer itself."""
    return all(value.isascii() for _, value in headers)


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and not set(value) & set(" ?#%")


def _quoted(value: str) -> str:
    return quote(value, safe="")


def good_body(body: Any) -> bytes:
    return json.dumps(body).encode()
