"""/v1/embed and /v2/embed: embeddings as Cohere's clients ask for them and read them."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.request_errors import as_sent
from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.pooling.cohere_embed import CohereEmbedBody, CohereTexts, by_type
from cadence.entrypoints.server.routes.pooling.vectors import text_values
from cadence.entrypoints.server.routes.pooling.work import PooledText, PooledWork, checked_work
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["pooling"])

_SENT = {"input": "texts", "dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens"}
Embedded = PooledText[dict[str, Any]]  # by type

_NO_PROMPT = "this model has no prompt for texts of this type"


@router.post("/v2/embed", openapi_extra=body_schema(CohereEmbedBody))
async def embed(request: Request, state: State) -> Response:
    body, texts, work = await _read(request, state)
    values = await _values(body, texts, work, state)
    return _answer("2", _by_type(values, body), texts, work, values)


@router.post("/v1/embed", openapi_extra=body_schema(CohereEmbedBody))
async def embed_v1(request: Request, state: State) -> Response:
    """Where no types are asked for, embeddings are a list."""
    body, texts, work = await _read(request, state)
    values = await _values(body, texts, work, state)
    if body.embedding_types:
        return _answer("1", _by_type(values, body), texts, work, values)
    return _answer("1", [one.value["float"] for one in values], texts, work, values)


async def _read(request: Request, state: ServerState) -> tuple[CohereEmbedBody, CohereTexts, PooledWork]:
    def make(raw: bytes) -> tuple[CohereEmbedBody, CohereTexts, PooledWork]:
        body = parse_body(CohereEmbedBody, raw, state.ignored.of(request))
        config = state.llm.config
        texts = body.as_pooled([name for name, _ in config.pooling.prompts], config.model.max_model_len)
        if body.input_type and texts.prompt_name is None:
            body.ignored.add("input_type", _NO_PROMPT)
        return body, texts, _checked(body, texts, request, state)

    return await state.bodies.read(request, make)


def _checked(body: CohereEmbedBody, texts: CohereTexts, request: Request, state: ServerState) -> PooledWork:
    try:
        return checked_work(texts, body.params(), "embed-", request, state)
    except InvalidRequestError as error:
        raise as_sent(error, _SENT) from None


async def _values(body: CohereEmbedBody, texts: CohereTexts, work: PooledWork, state: ServerState) -> list[Embedded]:
    try:
        return await text_values(texts, work, state, partial(by_type, types=body.types))
    except InvalidRequestError as error:
        raise as_sent(error, _SENT) from None


def _by_type(values: list[Embedded], body: CohereEmbedBody) -> dict[str, Any]:
    return {kind: [one.value[kind] for one in values] for kind in body.types}


def _answer(version: str, embeddings: Any, texts: CohereTexts, work: PooledWork, values: list[Embedded]) -> Response:
    tokens = sum(one.num_tokens for one in values)
    return json_response(
        {
            "id": work.name,
            "response_type": "embeddings_by_type" if isinstance(embeddings, dict) else "embeddings_floats",
            "embeddings": embeddings,
            "texts": texts.input,
            "meta": {"api_version": {"version": version}, "billed_units": {"input_tokens": tokens}},
        }
    )
