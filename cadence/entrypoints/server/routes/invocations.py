"""/invocations, SageMaker's one path for all: what a body holds says which endpoint is meant."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.bodies import BODY, Body
from cadence.entrypoints.server.protocol.json_text import decode_json
from cadence.entrypoints.server.routes.chat import create_chat_completion
from cadence.entrypoints.server.routes.completions import create_completion
from cadence.entrypoints.server.routes.state import State

router = APIRouter(tags=["sagemaker"])

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "messages": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "prompt": {"type": "string"},
        "model": {"type": "string"},
        "max_tokens": {"type": "integer"},
        "stream": {"type": "boolean"},
    },
}


class _Shape(msgspec.Struct):
    """Nothing of a body but which fields it has: their values are passed over."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@router.post("/invocations", openapi_extra={"requestBody": {"content": {"application/json": {"schema": _SCHEMA}}}})
async def invoke(request: Request, state: State) -> Response:
    """With `messages` as /v1/chat/completions, with `prompt` as /v1/completions."""
    body: Body = request.scope[BODY]
    shape = await state.bodies.run(body.size, _shape_of, body.content)
    if shape.messages is not msgspec.UNSET:
        return await create_chat_completion(request, state)
    if shape.prompt is not msgspec.UNSET:
        return await create_completion(request, state)
    raise InvalidRequestError("a body here must have messages, for a chat, or prompt, for a completion", "messages")


def _shape_of(content: bytes) -> _Shape:
    try:
        return msgspec.json.decode(content, type=_Shape)
    except msgspec.ValidationError:
        raise InvalidRequestError("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decode_json(content)  # which says what is wrong
        raise InvalidRequestError("the body must be a JSON object") from None
