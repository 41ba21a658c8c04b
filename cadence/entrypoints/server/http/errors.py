"""Every error as clients know it: one place that turns what was raised into a status, a body and headers.

OpenAI's shape everywhere, Anthropic's below its own paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from cadence.core.errors import BusyError, CadenceError, EngineDeadError, InvalidRequestError, ReaderTooSlowError

ANTHROPIC_PATHS = ("/v1/messages",)
MAX_MESSAGE = 2000  # characters: an error never mirrors a whole request

# status -> type in OpenAI's words, in Anthropic's words, default reason
_KINDS = {
    400: ("invalid_request_error", "invalid_request_error", None),
    401: ("authentication_error", "authentication_error", "invalid_api_key"),
    403: ("permission_error", "permission_error", None),
    404: ("invalid_request_error", "not_found_error", "not_found"),
    405: ("invalid_request_error", "invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "timeout_error", "deadline_exceeded"),
    409: ("invalid_request_error", "invalid_request_error", "conflict"),
    413: ("invalid_request_error", "request_too_large", "request_too_large"),
    415: ("invalid_request_error", "invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "rate_limit_error", "rate_limit_exceeded"),
    431: ("invalid_request_error", "invalid_request_error", "headers_too_large"),
    500: ("server_error", "api_error", "internal_error"),
    503: ("service_unavailable_error", "overloaded_error", "service_unavailable"),
}


def route_path(scope: Scope) -> str:
    """The path without the prefix under which a proxy shows the server."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


class ApiError(CadenceError):
    """An error with a status of its own. `param` names the field that is wrong, `code` is a word for programs: it
    becomes the body's `reason`, beside the status, which is its `code`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def not_found(message: str, param: str | None = None, code: str = "not_found") -> ApiError:
    return ApiError(404, message, param=param, code=code)


def model_not_found(name: str) -> ApiError:
    return not_found(f"The model `{name}` does not exist.", "model", "model_not_found")


def overloaded(message: str, retry_after: int) -> ApiError:
    return ApiError(429, message, headers={"Retry-After": str(retry_after)})


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, headers={"Retry-After": "1", "Connection": "close"})


@dataclass(frozen=True, slots=True)
class ErrorReply:
    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bug(self) -> bool:
        return self.status == 500

    def body(self, path: str = "") -> dict[str, Any]:
        """`path` chooses the shape. Also the payload of an error event in a stream."""
        openai_type, anthropic_type, code = _KINDS.get(self.status, _KINDS[400 if self.status < 500 else 500])
        message = _printable(self.message)
        if path.startswith(ANTHROPIC_PATHS):
            details = {"details": {"error_code": self.code}} if self.code else {}
            return {"type": "error", "error": {"type": anthropic_type, "message": message, **details}}
        param = None if self.param is None else _printable(self.param)
        told = {"message": message, "type": openai_type, "param": param, "code": self.status}
        return {"error": {**told, "reason": self.code or code}}

    def content(self, path: str = "") -> bytes:
        return json.dumps(self.body(path), ensure_ascii=False).encode()

    def response(self, path: str = "") -> Response:
        return Response(self.content(path), self.status, dict(self.headers), "application/json")


def reply_for(error: BaseException) -> ErrorReply:
    """What a client is told of an error. Everything unknown is a bug of ours and told without its details."""
    if isinstance(error, ApiError):
        return ErrorReply(error.status, str(error), error.param, error.code, error.headers)
    if isinstance(error, InvalidRequestError):
        return ErrorReply(400, str(error), error.field or None, error.reason or None)
    if isinstance(error, ReaderTooSlowError):
        return ErrorReply(408, f"The answer was not read in time: {error}.", code="reader_too_slow")
    if isinstance(error, BusyError):
        return ErrorReply(429, str(error), headers={"Retry-After": "1"})
    if isinstance(error, EngineDeadError):
        return engine_unavailable("it stopped or is being started again")  # why is in the log
    if isinstance(error, RequestValidationError | ValidationError):
        return _validation_reply(error)
    if isinstance(error, HTTPException):
        message = "Not found: there is no such path." if error.status_code == 404 else str(error.detail)
        return ErrorReply(error.status_code, message, headers=error.headers or {})
    return ErrorReply(500, "The server failed on this request. It has been logged.")


def engine_unavailable(why: str) -> ErrorReply:
    return ErrorReply(503, f"The engine is not available: {why}.", code="engine_unavailable")


def _validation_reply(error: RequestValidationError | ValidationError) -> ErrorReply:
    """The first problem; unions report one per member, and the first is the member tried first."""
    first: Any = next(iter(error.errors()), {})
    where = field_path(first.get("loc", ()))
    if first.get("type") == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ErrorReply(400, f"The body is not valid JSON: {reason}", code="invalid_json")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidRequestError):
        return ErrorReply(400, str(cause), cause.field or where or None)
    message = str(first.get("msg", "the request is not valid")).removeprefix("Value error, ")
    if first.get("type") == "missing":
        message = "this field is required"
    return ErrorReply(400, f"{where}: {message}" if where else message, where or None)


def field_path(location: tuple[int | str, ...]) -> str:
    """("body", "messages", 0, "role") -> "messages[0].role"."""
    parts = location[1:] if location and location[0] in ("body", "query", "path", "header", "cookie") else location
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _printable(text: str) -> str:
    """Half surrogates cannot be sent, and long texts are cut."""
    text = text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
    return text.encode("utf-8", "replace").decode()
