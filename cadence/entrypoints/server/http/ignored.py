"""Nothing is ignored in silence: which fields of a request had no effect, in its answer's header and in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import Scope

from cadence.core.errors import InvalidRequestError

logger = logging.getLogger("cadence.server")

IGNORED = "cadence.ignored"  # in the ASGI scope: the `Ignored` of this HTTP request
HEADER = b"x-cadence-ignored"
UNKNOWN = "unknown here"
MAX_NAMED = 32  # fields in one header; the others are counted
MAX_NAME = 64  # characters
MAX_LOGGED = 256  # different names in the log of one server

_ODD = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class Ignored:
    """The fields of one request that had no effect. With `strict` they are errors instead."""

    def __init__(self, strict: bool = False, log: Callable[[str, str], None] = lambda name, why: None) -> None:
        self.count = 0
        self.names: list[str] = []  # the first of them, fit for a header
        self._strict = strict
        self._log = log

    def add(self, name: str, why: str = UNKNOWN) -> None:
        """`name` as in errors: `tools[3]`, `stream_options.speed`. A name is said once."""
        if self._strict:
            raise InvalidRequestError(f"{name[:80]} has no effect here: {why}.", name[:80])
        shown = _ODD.sub("?", name[:MAX_NAME]) or "?"
        if shown in self.names:
            return
        self.count += 1
        if len(self.names) < MAX_NAMED:
            self.names.append(shown)
            self._log(shown, why)

    def header(self) -> bytes:
        more = self.count - len(self.names)
        return ", ".join([*self.names, *([f"and {more} more"] if more else [])]).encode()


class IgnoredFields:
    """Of all requests of a server: one line per name in its log."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._logged: set[str] = set()

    def of(self, connection: HTTPConnection) -> Ignored:
        ignored = Ignored(self._strict, self._log)
        connection.scope[IGNORED] = ignored
        return ignored

    def _log(self, name: str, why: str) -> None:
        kind = re.sub(r"\[\d+\]", "[]", name)
        if kind not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(kind)
            logger.warning("requests have the field %s, which has no effect: %s", kind, why)


NOTHING_IGNORED = Ignored()


def ignored_header(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The header of an answer; none where every field was heeded."""
    ignored: Ignored = scope.get(IGNORED, NOTHING_IGNORED)
    return [(HEADER, ignored.header())] if ignored.names else []
