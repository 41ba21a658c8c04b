"""The OpenAPI description, made to say what the server does: errors in one shape, and 400 where FastAPI writes 422."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

ERROR_STATUSES = {
    "400": "The request is not valid.",
    "401": "An API key is missing or wrong.",
    "404": "There is no such thing.",
    "405": "The method is not allowed here.",
    "408": "The request took too long.",
    "413": "The request body is too large.",
    "415": "The request body is not of the type that the path takes.",
    "429": "Too many requests; see Retry-After.",
    "431": "The request's headers are too large.",
    "503": "The server is shutting down, or its engine is not running.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer", "description": "the HTTP status"},
                "reason": {"type": ["string", "null"], "description": "a word for programs"},
            },
        }
    },
}


def install_schema(app: FastAPI) -> None:
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_errors(generate())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _with_errors(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    components["Error"] = _ERROR_SCHEMA
    for operations in schema.get("paths", {}).values():
        for operation in operations.values():
            responses = operation.setdefault("responses", {})
            responses.pop("422", None)
            for status, description in ERROR_STATUSES.items():
                responses.setdefault(status, _error_response(description))
    return schema


def _error_response(description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": description, "content": content}
