"""Admission control: which requests are accepted, and how each ended.

At all times accepted = finished + failed + aborted + in_flight. A request is decided upon before anything is done for
it, from what can be read off its size; rejected ones are counted apart. Most of those are rejected by
`early_rejection.py`, which asks `overload` before their bodies are read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from cadence.entrypoints.server.http.errors import overloaded, unavailable
from cadence.entrypoints.server.http.overload import Overload
from cadence.entrypoints.server.http.tenant_ledger import NO_TENANTS, NullLedger
from cadence.entrypoints.server.http.tenants import tenant_of

ADMITTED = "cadence.admitted"  # in the ASGI scope: the `AdmittedRequest`s of this HTTP request
ARRIVING = "cadence.arriving"  # in the ASGI scope: the request is being read, and not decided upon yet
BYTES_PER_TOKEN = 4  # of ordinary text


def estimate_tokens(prompt: Any) -> int:
    """Prompt tokens of a text, a list of ids, messages or any nesting of those, without tokenising."""
    if isinstance(prompt, str):
        return len(prompt) // BYTES_PER_TOKEN + 1
    if isinstance(prompt, dict):
        return sum(estimate_tokens(value) for value in prompt.values())
    if isinstance(prompt, Sequence):
        if prompt and isinstance(prompt[0], int):
            return len(prompt)
        return sum(estimate_tokens(item) for item in prompt)
    return 1


def _retry_after(completions: int) -> int:
    """The longer the queue, the later."""
    return min(30, 1 + completions // 100)


class AdmissionControl:
    def __init__(self, max_requests: int, max_tokens: int, max_model_len: int, ledger: NullLedger = NO_TENANTS) -> None:
        self.ledger = ledger  # what tenants may ask for
        self._of_tenant: Counter[str] = Counter()  # completions in flight
        self.max_requests = max_requests  # completions at once
        self._max_model_len = max_model_len
        self.max_tokens = max_tokens  # estimated prompt tokens at once
        self.accepted = 0  # HTTP requests, as the five below
        self.finished = 0
        self.failed = 0
        self.aborted = 0
        self.refused = 0  # never accepted
        self.completions = 0  # in flight
        self.tokens = 0  # in flight
        self.arriving = 0  # requests that are being read, and not decided upon yet
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return self.accepted - self.finished - self.failed - self.aborted

    def enter(self, request: HTTPConnection, estimated_tokens: int, completions: int = 1) -> AdmittedRequest:
        """Decides at once: raises 429 or 503, or gives the entry, which `async with` ends.

        A streaming route enters before its response starts and puts the `async with` around its generator's body.
        What is still open when the HTTP request ends counts as aborted.
        """
        self.arrived(request.scope)
        if self.draining:
            self.refused += 1
            raise unavailable("The server is shutting down and takes no new requests.")
        # What is longer than the model's length never gets to the engine, and must not keep others from it.
        estimated_tokens = min(estimated_tokens, completions * self._max_model_len)
        tenant = tenant_of(request.scope)
        overload = self.overload(estimated_tokens, completions) or self._crowded(tenant, completions)
        if overload is None:
            overload = self.ledger.enter(tenant, estimated_tokens)
        if overload is not None:
            self.refused += 1
            raise overloaded(*overload)
        entry = AdmittedRequest(self, estimated_tokens, completions, tenant)
        request.scope.setdefault(ADMITTED, []).append(entry)
        return entry

    def outlives(self, request: HTTPConnection, entry: AdmittedRequest) -> None:
        """The entry goes on when the HTTP request is over; it ends with its `async with` alone."""
        request.scope[ADMITTED].remove(entry)

    def arrives(self, scope: Scope) -> None:
        """Keeps a place for a request whose body is yet to be read."""
        scope[ARRIVING] = True
        self.arriving += 1

    def arrived(self, scope: Scope) -> None:
        """It was decided upon, or has left. May be called twice."""
        if scope.pop(ARRIVING, False):
            self.arriving -= 1

    def drain(self) -> None:
        """From now on no request is accepted."""
        self.draining = True

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def overload(self, tokens: int, completions: int) -> Overload | None:
        """Why a request of this size cannot be accepted now. An idle server accepts any: the engine judges what is too
        long."""
        if not self.completions:
            return None
        if self.completions + completions > self.max_requests:
            limit = f"{self.max_requests} requests"
        elif self.tokens + tokens > self.max_tokens:
            limit = f"{self.max_tokens} queued prompt tokens"
        else:
            return None
        return Overload(f"The server is at its limit of {limit}; try again later.", _retry_after(self.completions))

    def _crowded(self, tenant: str, completions: int) -> Overload | None:
        """One of several tenants leaves places for the others."""
        held, most = self._of_tenant[tenant], int(self.max_requests * self.ledger.most_places(tenant))
        if not held or held + completions <= most:
            return None
        return Overload(f"This key is at its limit of {most} requests at once; try again later.", _retry_after(held))

    def _entered(self, entry: AdmittedRequest) -> None:
        self.accepted += 1
        self.completions += entry.completions
        self.tokens += entry.tokens
        self._of_tenant[entry.tenant] += entry.completions
        self._idle.clear()

    def _left(self, entry: AdmittedRequest, outcome: str) -> None:
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.completions -= entry.completions
        self.tokens -= entry.tokens
        self._of_tenant[entry.tenant] -= entry.completions
        if not self._of_tenant[entry.tenant]:
            del self._of_tenant[entry.tenant]
        if not self.in_flight:
            self._idle.set()


class AdmittedRequest:
    """One accepted request. Ends once, by the first of `finish`, `fail`, `abort` or the end of its `async with`."""

    def __init__(self, admission: AdmissionControl, tokens: int, completions: int, tenant: str) -> None:
        self.tokens = tokens
        self.tenant = tenant
        self.completions = completions
        self._admission = admission
        self._open = True
        admission._entered(self)

    def finish(self) -> None:
        self._end("finished")

    def fail(self) -> None:
        """For routes that turned an error into an error event themselves."""
        self._end("failed")

    def abort(self) -> None:
        self._end("aborted")

    async def __aenter__(self) -> AdmittedRequest:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Exception) and not isinstance(error, OSError):
            self.fail()
        else:  # cancelled, the generator closed, or the client gone
            self.abort()

    def _end(self, outcome: str) -> None:
        if self._open:
            self._open = False
            self._admission._left(self, outcome)
