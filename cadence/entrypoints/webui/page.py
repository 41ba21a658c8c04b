"""The pages at `/` and `/docs`: plain files without a build step."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A closed set: a name that is not in it is not looked for on the disk.
_NAMES = frozenset(path.name for path in _FOLDER.iterdir() if path.suffix in _TYPES)

_PARTS = frozenset(name for name in _NAMES if not name.endswith(".html"))

# What a browser must load before anyone can type a key. No secrets, no state: the same bytes for every user.
PUBLIC_PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _PARTS)})

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked about each time: see ETag
}


class PageFile:
    """One file and the route that serves it; read when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._path = _FOLDER / name
        self._content = b""
        self._tag = ""  # the ETag; "" = not read yet

    def serve(self, router: APIRouter, path: str) -> None:
        router.add_api_route(path, self._answer, methods=["GET", "HEAD"], include_in_schema=False)

    async def _answer(self, request: Request) -> Response:
        if not self._tag:
            self._content = self._path.read_bytes()
            self._tag = f'"{hashlib.sha256(self._content).hexdigest()[:16]}"'
        headers = {**_HEADERS, "ETag": self._tag}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        return Response(self._content, media_type=_TYPES[self._path.suffix], headers=headers)


def page_router() -> APIRouter:
    """The playground and the live view."""
    router = APIRouter()
    PageFile("index.html").serve(router, "/")
    for name in sorted(_PARTS):
        PageFile(name).serve(router, f"/page/{name}")
    return router


def docs_router() -> APIRouter:
    """The API, drawn from /openapi.json."""
    router = APIRouter()
    docs = PageFile("docs.html")
    docs.serve(router, "/docs")
    docs.serve(router, "/redoc")
    return router
