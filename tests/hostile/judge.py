"""Whether an answer is one the server promises: a known status, an error in its documented shape, nothing internal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.hostile.case import Case
from tests.hostile.wire import Answer

ALLOWED = frozenset({200, 400, 401, 404, 405, 408, 413, 415, 429, 431})
ANTHROPIC = "/v1/messages"
_LEAKS = re.compile(
    r"Traceback|\w+Error\b|\w+Exception\b|object at 0x|<class |<function |pydantic|msgspec|starlette|fastapi|NoneType|"
    r"\btokenizers\b|\bjinja2?\b|\btorch\b(?!\.save)|\bzmq\b|asyncio|\.py\b|\bline \d+, in\b|\bpanicked\b|\bself\b|"
    r"\bkwargs\b|[Ee]xpected `\w+`|\b[a-z_]+\(\) (got|takes|missing)|\bnot subscriptable\b|\bhas no attribute\b|"
    r"\bunhashable\b|\bcodec can't\b|\blist index\b|\bmust be str, not\b|\bC (int|long|double)\b"
)
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")


def problems(case: Case, answer: Answer) -> list[str]:
    """What is wrong with an answer; empty when nothing is."""
    if answer.end == "timeout":
        return [f"no answer within {answer.seconds:.0f} s"]
    if case.leave_after is not None or case.request.half:
        return [] if answer.status in (0, *ALLOWED) else [f"status {answer.status}"]
    if answer.end == "closed":
        return ["the connection was closed without a whole answer"] if case.is_http else []
    return [*_judge(case, answer)]


def _judge(case: Case, answer: Answer) -> Iterator[str]:
    if answer.status not in ALLOWED:
        yield f"status {answer.status}: {answer.body[:300]!r}"
    elif case.expected and answer.status not in case.expected:
        yield f"status {answer.status} where {sorted(case.expected)} is right: {answer.body[:300]!r}"
    kind = answer.headers.get("content-type", "")
    if answer.status == 200:
        if kind.startswith("text/event-stream"):
            yield from _judge_stream(case, answer.body)
        elif kind.startswith("application/json") and _parsed(answer.body) is _BROKEN:
            yield f"not JSON: {answer.body[:200]!r}"
        return
    if not kind.startswith("application/json"):
        yield f"an error of type {kind!r}"
    body = _parsed(answer.body)
    error = _error_of(body, case.request.target.startswith(ANTHROPIC))
    if error is None and not case.is_http:  # where the path could not be read, the shape is OpenAI's
        error = _error_of(body, is_anthropic=False)
    if error is None and case.request.method != "HEAD":
        yield f"an error that is not in the documented shape: {answer.body[:300]!r}"
    elif error is not None:
        yield from _judge_error(case, error)


def _judge_error(case: Case, error: dict[str, Any]) -> Iterator[str]:
    leak = _LEAKS.search(error["message"])
    if leak and leak[0].encode() not in case.request.body and leak[0] not in case.request.target:
        yield f"internal text {leak[0]!r} in the message {error['message'][:300]!r}"
    blamed = error.get("param")
    if case.blamed and re.split(r"[.\[]", blamed or "")[0] != case.blamed:
        yield f"blames {blamed!r}, not {case.blamed!r}: {error['message'][:200]!r}"
    if case.known_fields is not None and blamed is not None:
        root = re.split(r"[.\[]", blamed)[0]
        if not any(name[:60] == root[:60] or name.startswith(blamed[:60]) for name in case.known_fields):
            yield f"blames {blamed!r}, which the client did not send: {error['message'][:200]!r}"


def _judge_stream(case: Case, body: bytes) -> Iterator[str]:
    """Every event is JSON; the last one says how the stream ended."""
    ended = False
    for line in body.split(b"\n"):
        if line == b"data: [DONE]":
            ended = True
        elif line.startswith(b"data: "):
            event = _parsed(line[6:])
            if not isinstance(event, dict):
                yield f"an event that is not JSON: {line[:200]!r}"
                continue
            ended = ended or event.get("type") in _LAST_EVENTS or "error" in event
            error = event.get("error") or (event.get("response") or {}).get("error")
            if isinstance(error, dict):
                yield from _judge_event_error(case, error)
    if not ended:
        yield f"a stream that does not end: …{body[-200:]!r}"


def _judge_event_error(case: Case, error: dict[str, Any]) -> Iterator[str]:
    if error.get("type", error.get("code")) in ("server_error", "api_error", "service_unavailable_error"):
        yield f"a stream failed: {error}"
    if isinstance(error.get("message"), str):
        yield from _judge_error(case, error)


_BROKEN = object()


def _parsed(text: bytes) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return _BROKEN


def _error_of(body: Any, is_anthropic: bool) -> dict[str, Any] | None:
    """The error's object where it has the documented shape."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"].strip():
        return None
    if not isinstance(error.get("type"), str):
        return None
    if is_anthropic:
        return error if body.get("type") == "error" else None
    has_shape = set(error) == {"message", "type", "param", "code", "reason"} and isinstance(error["param"], str | None)
    has_shape = has_shape and isinstance(error["code"], int) and 400 <= error["code"] < 600
    return error if has_shape else None
