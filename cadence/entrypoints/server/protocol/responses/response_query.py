"""What GET /v1/responses/{id} may be asked beside the id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored

_YES = ("true", "1")
_NO = ("false", "0", "")


@dataclass(frozen=True, slots=True)
class ResponseQuery:
    stream: bool
    start: int  # number of the first event to be told

    @classmethod
    def of(cls, query: Mapping[str, str], ignored: Ignored) -> ResponseQuery:
        for name in query:
            if name not in ("stream", "starting_after"):
                ignored.add(name, "responses are given as they were made")
        stream, after = query.get("stream", "").lower(), query.get("starting_after", "")
        if stream not in (*_YES, *_NO):
            raise InvalidRequestError("stream must be true or false", "stream")
        if after and not re.fullmatch("[0-9]{1,9}", after):
            raise InvalidRequestError("starting_after must be the number of an event", "starting_after")
        if after and stream not in _YES:
            raise InvalidRequestError("starting_after needs stream=true", "starting_after")
        return cls(stream in _YES, int(after) + 1 if after else 0)
