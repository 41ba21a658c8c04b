"""/score, /rerank and their other names: how well texts fit together."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.pooling.scores import RerankBody, ScoreBody, TextPairs
from cadence.entrypoints.server.routes.pooling.pairs import check_pair_template, pair_scores, scoring_params
from cadence.entrypoints.server.routes.pooling.work import PooledWork, checked_work, list_answer, usage_of
from cadence.entrypoints.server.routes.state import ServerState, State

AnyBody = TypeVar("AnyBody", ScoreBody, RerankBody)

router = APIRouter(tags=["pooling"])


@router.post("/score", openapi_extra=body_schema(ScoreBody))
@router.post("/v1/score", openapi_extra=body_schema(ScoreBody))
async def score(request: Request, state: State) -> Response:
    body, pairs, work = await _read(ScoreBody, "score-", request, state)
    found = await pair_scores(work, body, pairs, state)
    data = [{"index": number, "object": "score", "score": value} for number, value in enumerate(found.scores)]
    return json_response(list_answer(work, data, found.read, state))


@router.post("/rerank", openapi_extra=body_schema(RerankBody))
@router.post("/v1/rerank", openapi_extra=body_schema(RerankBody))
@router.post("/v2/rerank", openapi_extra=body_schema(RerankBody))
async def rerank(request: Request, state: State) -> Response:
    """As Jina, Cohere and vLLM shape it: the best first."""
    body, pairs, work = await _read(RerankBody, "rerank-", request, state)
    found = await pair_scores(work, body, pairs, state)
    order = sorted(range(pairs.count), key=lambda number: -found.scores[number])[: body.shown]
    with_text = body.return_documents is not False
    usage = usage_of(found.read, state)
    return json_response(
        {
            "id": work.name,
            "model": work.model,
            "results": [_result(number, found.scores[number], pairs, with_text) for number in order],
            "usage": {"prompt_tokens": usage["prompt_tokens"], "total_tokens": usage["total_tokens"]},
            "meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": usage["prompt_tokens"]}},
        }
    )


def _result(number: int, value: float, pairs: TextPairs, with_text: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"index": number, "relevance_score": value}
    return {**shown, "document": {"text": pairs.second[number]}} if with_text else shown


async def _read(
    kind: type[AnyBody], prefix: str, request: Request, state: ServerState
) -> tuple[AnyBody, TextPairs, PooledWork]:
    def make(raw: bytes) -> tuple[AnyBody, TextPairs, PooledWork]:
        body = parse_body(kind, raw, state.ignored.of(request))
        pairs = body.pairs()
        check_pair_template(body, state)
        return body, pairs, checked_work(body, scoring_params(body, state), prefix, request, state)

    return await state.bodies.read(request, make)
