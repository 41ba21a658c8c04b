"""Who may ask. With keys set, every path but the health checks needs one of them.

A key comes as `Authorization: Bearer KEY`, as `x-api-key: KEY` (Anthropic's clients), or as the password of
`Authorization: Basic`, which is how a browser opens the page.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.entrypoints.openai.errors import ApiError, reply_for, route_path

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})


class ApiKeys:
    """Compares in constant time: digests of one length, and all of them, whichever fits."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode("utf-8", "surrogateescape")) for key in keys]

    def accepts(self, key: bytes) -> bool:
        given = _digest(key)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches)


class Authentication:
    """Use only with at least one key."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = ApiKeys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if scope["type"] == "http" and path not in OPEN_PATHS:
            headers = Headers(scope=scope)
            if not any(self._keys.accepts(key) for key in _given_keys(headers)):
                await reply_for(_refusal(headers)).response(path)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _given_keys(headers: Headers) -> list[bytes]:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    keys = [headers["x-api-key"].encode("latin-1")] if "x-api-key" in headers else []
    if scheme.lower() == "bearer":
        keys.append(value.strip().encode("latin-1"))
    elif scheme.lower() == "basic":
        keys.append(_basic_password(value.strip()))
    return keys


def _basic_password(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _refusal(headers: Headers) -> ApiError:
    scheme = "Basic" if "text/html" in headers.get("accept", "") else "Bearer"
    given = "authorization" in headers or "x-api-key" in headers
    message = "The API key is not valid." if given else "An API key is required: Authorization: Bearer KEY."
    return ApiError(401, message, headers={"WWW-Authenticate": f'{scheme} realm="cadence"'})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
