"""The pages at `/` and `/docs`: plain files without a build step."""

from __future__ import annotations

import functools
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

# What a browser must load before anyone can type a key. No secrets, no state: the same bytes for everybody.
PUBLIC_PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _PARTS)})

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked about each time: see ETag
}

router = APIRouter()
docs_router = APIRouter()


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def page(request: Request) -> Response:
    return _file(request, "index.html")


@docs_router.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
@docs_router.api_route("/redoc", methods=["GET", "HEAD"], include_in_schema=False)
async def docs(request: Request) -> Response:
    """The API, drawn from /openapi.json."""
    return _file(request, "docs.html")


def _serve(name: str) -> None:
    @router.api_route(f"/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def file(request: Request) -> Response:
        return _file(request, name)


for _name in sorted(_PARTS):
    _serve(_name)


def _file(request: Request, name: str) -> Response:
    content, tag = _read(name)
    headers = {**_HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)


@functools.cache
def _read(name: str) -> tuple[bytes, str]:
    content = (_FOLDER / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
