"""What an HTTP request and its answer are called: the id, the time, and what else is drawn for them. All of it is in
the ASGI scope: it stays the same while the request lasts, and a request that is run again is given it."""

from __future__ import annotations

import re
import secrets
import time
import uuid
from typing import Any, cast

from starlette.requests import HTTPConnection
from starlette.types import Scope

REQUEST_ID = "cadence.request_id"  # in the ASGI scope, as the others
CREATED = "cadence.created"
TOKEN = "cadence.token"
ENGINE_IDS = "cadence.engine_ids"
_GOOD_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


def request_id(connection: HTTPConnection, prefix: str = "") -> str:
    """The client's X-Request-Id where it is a sensible one, else a new one; the same while the request lasts."""
    known = connection.scope.get(REQUEST_ID)
    if known is None:
        given = connection.headers.get("x-request-id", "")
        known = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        connection.scope[REQUEST_ID] = known
    return prefix + cast(str, known)


def created(scope: Scope) -> int:
    """Seconds since 1970, as the answer says."""
    return cast(int, scope.setdefault(CREATED, int(time.time())))


def token(scope: Scope) -> str:
    """32 hexadecimal digits that cannot be guessed."""
    return cast(str, scope.setdefault(TOKEN, secrets.token_hex(16)))


def names(scope: Scope) -> dict[str, Any]:
    """What was drawn so far, to be put into another scope."""
    return {key: scope[key] for key in (REQUEST_ID, CREATED, TOKEN) if key in scope}


def add_engine_id(scope: Scope, engine_id: str) -> None:
    """One of the requests to the engine that this request makes."""
    scope.setdefault(ENGINE_IDS, []).append(engine_id)


def engine_ids(scope: Scope) -> list[str]:
    return list(scope.get(ENGINE_IDS, ()))
