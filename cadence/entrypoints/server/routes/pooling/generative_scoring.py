"""/generative_scoring: how likely a model that writes text is to go on with certain tokens."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import Logprob, RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.entrypoints.server.chat.events import Usage
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.chat.request_errors import as_sent, check_room
from cadence.entrypoints.server.http.admission import estimate_tokens
from cadence.entrypoints.server.http.request_deadline import in_time
from cadence.entrypoints.server.http.request_ids import request_id
from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.pooling.generative_scoring import GenerativeScoringBody
from cadence.entrypoints.server.protocol.sampling import priority_of
from cadence.entrypoints.server.protocol.usage import usage_object
from cadence.entrypoints.server.routes.pooling.in_flight import all_parts, width
from cadence.entrypoints.server.routes.pooling.prompts import NamedPrompt, add_tokens
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.text.service.text_service import Encoding

router = APIRouter(tags=["pooling"])


@router.post("/generative_scoring", openapi_extra=body_schema(GenerativeScoringBody))
async def score_by_labels(request: Request, state: State) -> Response:
    work = await state.bodies.read(request, lambda raw: _prepare(raw, request, state))
    items = work.items
    size = estimate_tokens(items) + len(items) * estimate_tokens(work.body.query)
    async with state.admission.enter(request, size, width(len(items))):
        prompts = await _prompts(work, state)
        parts = all_parts(len(items), lambda number: _score(work, number, prompts[number], state))
        found = await in_time(parts, state.options.request_deadline)
    tokens = sum(len(prompt.token_ids) for prompt in prompts)
    return json_response(
        {
            "id": work.name,
            "object": "list",
            "created": int(time.time()),
            "model": work.model,
            "data": [{"index": number, "object": "score", "score": score} for number, score in enumerate(found)],
            "usage": usage_object(Usage(tokens, len(items), 0)),
        }
    )


@dataclass(frozen=True, slots=True)
class _LabelWork:
    body: GenerativeScoringBody
    items: list[str | list[int]]
    params: SamplingParams
    name: str
    model: str
    request: Request


def _prepare(raw: bytes, request: Request, state: ServerState) -> _LabelWork:
    body = parse_body(GenerativeScoringBody, raw, state.ignored.of(request))
    body.check(state.llm.vocab_size)
    params = SamplingParams(
        max_tokens=1,
        temperature=0.0,
        logprob_token_ids=body.label_token_ids,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prefix = "generative-scoring-"
    name = f"{prefix}{body.request_id}" if body.request_id else request_id(request, prefix)
    return _LabelWork(body, body.all_items(), params, name, state.check_model(body.model), request)


async def _prompts(work: _LabelWork, state: ServerState) -> list[NamedPrompt]:
    """The query is tokenised once, and the items without special tokens of their own."""
    body, max_model_len = work.body, state.llm.config.model.max_model_len
    query = await _tokens(body.query, body.add_special_tokens, "query", state)
    prompts, total = [], 0
    for number, item in enumerate(work.items):
        where = f"items[{number}]"
        tokens = await _tokens(item, False, where, state)
        token_ids = tokens + query if body.item_first else query + tokens
        check_room(len(token_ids), 1, max_model_len, where)
        total = add_tokens(total, len(token_ids), where)
        prompts.append(NamedPrompt(token_ids, where))
        await asyncio.sleep(0)  # others have a turn between two of many short ones
    return prompts


async def _tokens(given: str | list[int], special: bool, where: str, state: ServerState) -> list[int]:
    if not isinstance(given, str):
        return given
    return (await state.llm.texts.encode(given, Encoding(special, field=where))).ids


async def _score(work: _LabelWork, number: int, prompt: NamedPrompt, state: ServerState) -> float:
    scope, body = work.request.scope, work.body
    given: Any = {
        "prompt_token_ids": prompt.token_ids,
        "cache_salt": state.tenants.cache_salt(scope, body.cache_salt),
        "tenant": tenant_of(scope),
        "data_parallel_rank": state.data_parallel_rank(work.request),
    }
    name = state.tenants.engine_id(scope, f"{work.name}-{number}")
    options = {"priority": priority_of(body, work.request.headers), **state.adapters.given(body.model)}
    source = state.llm.generate(given, work.params, name, **options)
    try:
        async with aclosing(cast(AsyncGenerator[RequestOutput, None], source)) as outputs:
            output = [one async for one in outputs][-1].outputs[0]
    except InvalidRequestError as error:
        raise as_sent(error, {"prompt": prompt.where, "logprob_token_ids": "label_token_ids"}) from None
    raise_failure(output)
    assert output.logprobs is not None
    return label_score(output.logprobs[0], body.label_token_ids, body.apply_softmax)


def label_score(position: Mapping[int, Logprob], labels: list[int], among_labels: bool) -> float:
    """The probability of the first label: among the labels, or among all tokens."""
    first = position[labels[0]].logprob
    if not among_labels:
        return math.exp(first)
    others = [position[label].logprob for label in dict.fromkeys(labels)]
    highest = max(others)
    if highest == -math.inf:  # none of them can come
        return 0.0
    return math.exp(first - highest) / sum(math.exp(other - highest) for other in others)
