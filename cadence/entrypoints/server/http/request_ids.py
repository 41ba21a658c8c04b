"""The id of an HTTP request."""

from __future__ import annotations

import re
import uuid
from typing import cast

from starlette.requests import HTTPConnection

REQUEST_ID = "cadence.request_id"  # in the ASGI scope
_GOOD_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


def request_id(connection: HTTPConnection, prefix: str = "") -> str:
    """The client's X-Request-Id where it is a sensible one, else a new one; the same while the request lasts."""
    known = connection.scope.get(REQUEST_ID)
    if known is None:
        given = connection.headers.get("x-request-id", "")
        known = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        connection.scope[REQUEST_ID] = known
    return prefix + cast(str, known)
