"""API keys. With keys set, every path needs one of them, but the health checks, the page's own files and what tells
of the server's state (`STATE_PATHS`, which `--protect-metrics` closes too). A preflight of a browser carries no key and
asks for none.

A key comes as `Authorization: Bearer KEY`, as `x-api-key: KEY` (Anthropic's clients), or as the password of
`Authorization: Basic`, which is how a browser opens the page.
"""

from __future__ import annotations

import base64

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.entrypoints.server.http.errors import ApiError, reply_for, route_path
from cadence.entrypoints.server.http.tenants import TENANT, Tenants

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health"})
STATE_PATHS = frozenset({"/metrics", "/load", "/version", "/ping"})
# Styles and scripts, the same for every user: a browser asks for them without the key of `http://user:key@host/`.
PAGE_FILES = "/page/"

KEY_OFFER = "openai-insecure-api-key."


class Authentication:
    """Use only with at least one key. What it lets through it names: `tenant_of(scope)`."""

    def __init__(self, app: ASGIApp, tenants: Tenants, protect_metrics: bool = False) -> None:
        self._app = app
        self._tenants = tenants
        self._open = OPEN_PATHS if protect_metrics else OPEN_PATHS | STATE_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        is_asked = scope["type"] == "websocket" or (scope["type"] == "http" and scope["method"] != "OPTIONS")
        if is_asked and not self._is_open(path):
            headers = Headers(scope=scope)
            given = [*_given_keys(headers), *_offered_keys(scope)]
            found = [self._tenants.tenant(key) for key in given]
            known = [tenant for tenant in found if tenant is not None]
            if not known:
                await reply_for(_refusal(headers)).response(path)(scope, receive, send)
                return
            scope[TENANT] = known[0]
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(PAGE_FILES)


def _given_keys(headers: Headers) -> list[bytes]:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    keys = [headers["x-api-key"].encode("latin-1")] if "x-api-key" in headers else []
    if scheme.lower() == "bearer":
        keys.append(value.strip().encode("latin-1"))
    elif scheme.lower() == "basic":
        keys.append(_basic_password(value.strip()))
    return keys


def _offered_keys(scope: Scope) -> list[bytes]:
    """A page cannot set headers of a WebSocket: OpenAI's clients there offer the key as a subprotocol."""
    offered = scope.get("subprotocols", ())
    return [name.removeprefix(KEY_OFFER).encode("latin-1", "replace") for name in offered if name.startswith(KEY_OFFER)]


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
