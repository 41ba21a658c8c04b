"""/v1/embeddings, /pooling, /classify: values of texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.entrypoints.server.http.admission import estimate_tokens
from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.pooling.answers import FloatArray, class_of, encoded
from cadence.entrypoints.server.protocol.pooling.bodies import ClassifyBody, EmbeddingBody, PoolingBody
from cadence.entrypoints.server.protocol.pooling.fields import PooledBody
from cadence.entrypoints.server.routes.pooling.in_flight import width
from cadence.entrypoints.server.routes.pooling.prompts import pooled_prompts
from cadence.entrypoints.server.routes.pooling.work import (
    PooledText,
    PooledWork,
    checked_work,
    list_answer,
    pooled_values,
)
from cadence.entrypoints.server.routes.state import ServerState, State

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", EmbeddingBody, PoolingBody, ClassifyBody)

router = APIRouter(tags=["pooling"])


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingBody))
async def create_embeddings(request: Request, state: State) -> Response:
    body, work = await _read(EmbeddingBody, "embd-", request, state)
    values = await text_values(body, work, state, partial(encoded, encoding_format=body.encoding_format))
    return _answer("embedding", [{"embedding": one.value} for one in values], work, values, state)


@router.post("/pooling", openapi_extra=body_schema(PoolingBody))
async def pool(request: Request, state: State) -> Response:
    body, work = await _read(PoolingBody, "pool-", request, state)
    values = await text_values(body, work, state, partial(encoded, encoding_format=body.encoding_format))
    return _answer("pooling", [{"data": one.value} for one in values], work, values, state)


@router.post("/classify", openapi_extra=body_schema(ClassifyBody))
async def classify(request: Request, state: State) -> Response:
    body, work = await _read(ClassifyBody, "classify-", request, state)
    values = await text_values(body, work, state, partial(class_of, labels=state.llm.config.pooling.labels))
    data = [{"index": number, **one.value} for number, one in enumerate(values)]
    return json_response(list_answer(work, data, values, state))


async def _read(kind: type[AnyBody], prefix: str, request: Request, state: ServerState) -> tuple[AnyBody, PooledWork]:
    def make(raw: bytes) -> tuple[AnyBody, PooledWork]:
        body = parse_body(kind, raw, state.ignored.of(request))
        body.check()
        return body, checked_work(body, body.params(), prefix, request, state)

    return await state.bodies.read(request, make)


async def text_values(
    body: PooledBody,
    work: PooledWork,
    state: ServerState,
    shape: Callable[[FloatArray], T],
) -> list[PooledText[T]]:
    inputs = body.inputs()
    async with state.admission.enter(work.request, estimate_tokens(inputs or body.messages), width(len(inputs) or 1)):
        prompts = await pooled_prompts(body, inputs, state)
        work.check_size(prompts, state)
        return await pooled_values(work, prompts, state, shape)


def _answer(
    kind: str,
    shown: list[dict[str, Any]],
    work: PooledWork,
    values: list[PooledText[Any]],
    state: ServerState,
) -> Response:
    data = [{"index": number, "object": kind, **one} for number, one in enumerate(shown)]
    return json_response(list_answer(work, data, values, state))
