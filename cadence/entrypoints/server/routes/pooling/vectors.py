"""/v1/embeddings, /pooling, /classify: values of texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.entrypoints.server.http.admission import estimate_tokens
from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.pooling.answers import FloatArray, class_of, encoded
from cadence.entrypoints.server.protocol.pooling.binary import BinaryValues, metadata, to_bytes
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
    usage_of,
)
from cadence.entrypoints.server.routes.state import ServerState, State

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", EmbeddingBody, PoolingBody, ClassifyBody)

router = APIRouter(tags=["pooling"])


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingBody))
async def create_embeddings(request: Request, state: State) -> Response:
    body, work = await _read(EmbeddingBody, "embd-", request, state)
    return await _encoded_answer("embedding", "embedding", body, work, state)


@router.post("/pooling", openapi_extra=body_schema(PoolingBody))
async def pool(request: Request, state: State) -> Response:
    body, work = await _read(PoolingBody, "pool-", request, state)
    return await _encoded_answer("pooling", "data", body, work, state)


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


async def _encoded_answer(
    kind: str, field: str, body: EmbeddingBody | PoolingBody, work: PooledWork, state: ServerState
) -> Response:
    """kind: of an object; field: of its values"""
    if body.encoding_format in ("bytes", "bytes_only"):
        return await _bytes_answer(body, work, state)
    form = {"encoding_format": body.encoding_format, "dtype": body.embed_dtype, "endianness": body.endianness}
    shape = partial(encoded, **form)
    values = await text_values(body, work, state, shape)
    data = [{"index": number, "object": kind, field: one.value} for number, one in enumerate(values)]
    return json_response(list_answer(work, data, values, state))


async def _bytes_answer(body: EmbeddingBody | PoolingBody, work: PooledWork, state: ServerState) -> Response:
    dtype, endianness = body.embed_dtype, body.endianness

    def shape(values_np: FloatArray) -> BinaryValues:
        return BinaryValues(to_bytes(values_np, dtype, endianness), values_np.shape)

    values = await text_values(body, work, state, shape)
    binary = [one.value for one in values]
    headers = {}
    if body.encoding_format == "bytes":
        usage, now = usage_of(values, state), int(time.time())
        headers["metadata"] = metadata(work.name, now, work.model, binary, dtype, endianness, usage)
    content = b"".join(one.content for one in binary)
    return Response(content, media_type="application/octet-stream", headers=headers)
