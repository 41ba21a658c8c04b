"""/inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.chat.events import Usage
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.chat.request_errors import as_sent
from cadence.entrypoints.server.http.request_ids import request_id
from cadence.entrypoints.server.http.stream import EventStream, admitted, event, json_response, started_stream
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.generate import GenerateBody
from cadence.entrypoints.server.protocol.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from cadence.entrypoints.server.protocol.sampling import check_weight, priority_of
from cadence.entrypoints.server.protocol.usage import usage_object
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["tokens"])

PARAMETERS = [field.name for field in dataclasses.fields(SamplingParams) if field.init]
SENT_NAMES = {**{name: f"sampling_params.{name}" for name in PARAMETERS}, "prompt": "token_ids"}


@router.post("/inference/v1/generate", openapi_extra=body_schema(GenerateBody))
async def generate(request: Request, state: State) -> Response:
    work = await state.bodies.read(request, lambda raw: _prepare(raw, request, state))
    entry = state.admission.enter(request, len(work.body.token_ids), work.params.n)
    outputs = admitted(entry, _outputs(work, request, state), _check_output)
    if work.body.stream:
        return EventStream(_chunks(work, await started_stream(outputs)))
    return json_response(await _answer(work, outputs))


@dataclass(frozen=True, slots=True)
class _Work:
    body: GenerateBody
    params: SamplingParams
    names: TokenNames
    name: str
    model: str

    def choice(self, output: CompletionOutput) -> dict[str, Any]:
        return {
            "index": output.index,
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
            "token_ids": list(output.token_ids),
        }

    def _logprobs(self, output: CompletionOutput) -> dict[str, Any] | None:
        """The token that was chosen is always among the top ones, also where none are asked for."""
        top, positions = self.params.logprobs, output.logprobs
        if self.params.logprob_token_ids:
            top = -1
        if top is None or positions is None:
            return None
        return chat_logprobs(self.names, output.token_ids, positions, top or 1)

    def usage(self, completion_tokens: int, cached: int | None) -> dict[str, Any]:
        return usage_object(Usage(len(self.body.token_ids), completion_tokens, cached or 0), True)


def _prepare(raw: bytes, request: Request, state: ServerState) -> _Work:
    body = parse_body(GenerateBody, raw, state.ignored.of(request))
    model = state.check_model(body.model)
    params = body.params(state.default_sampling)
    if params.n > state.options.max_completions:
        raise InvalidRequestError(f"n must be at most {state.options.max_completions}", "sampling_params.n")
    check_weight(params, params.n)
    name = body.request_id or request_id(request)
    return _Work(body, params, TokenNames(state.llm.tokenizer, as_ids=True), name, model)


async def _outputs(work: _Work, request: Request, state: ServerState) -> AsyncGenerator[RequestOutput, None]:
    body, scope = work.body, request.scope
    prompt: Any = {
        "prompt_token_ids": body.token_ids,
        "cache_salt": state.tenants.cache_salt(scope, body.cache_salt),
        "tenant": tenant_of(scope),
        "data_parallel_rank": state.data_parallel_rank(request),
    }
    priority = priority_of(body, request.headers)
    name, adapter = state.tenants.engine_id(scope, work.name), state.adapters.given(body.model)
    source = state.llm.generate(prompt, work.params, name, priority=priority, **adapter)
    try:
        async with aclosing(cast(AsyncGenerator[RequestOutput, None], source)) as outputs:
            async for output in outputs:
                yield output
    except InvalidRequestError as error:
        raise as_sent(error, SENT_NAMES) from None


async def _answer(work: _Work, source: AsyncGenerator[RequestOutput, None]) -> dict[str, Any]:
    async with aclosing(source) as outputs:
        last = [output async for output in outputs][-1]
    tokens = sum(len(one.token_ids) for one in last.outputs)
    return {
        "request_id": work.name,
        "model": work.model,
        "created": int(time.time()),
        "choices": [work.choice(one) for one in last.outputs],
        "usage": work.usage(tokens, last.num_cached_tokens),
        "prompt_logprobs": prompt_logprobs(last.prompt_logprobs),
        "kv_transfer_params": None,
    }


async def _chunks(work: _Work, source: Any) -> AsyncGenerator[bytes, None]:
    wanted = work.body.stream_options
    tokens, cached = 0, 0
    async with aclosing(source) as outputs:
        async for output in outputs:
            cached = output.num_cached_tokens or 0
            tokens += sum(len(one.token_ids) for one in output.outputs)
            choices = [work.choice(one) for one in output.outputs]
            yield event({"request_id": work.name, "choices": choices, "usage": None})
    if wanted is not None and wanted.include_usage:
        yield event({"request_id": work.name, "choices": [], "usage": work.usage(tokens, cached)})


def _check_output(output: RequestOutput) -> None:
    for completion in output.outputs:
        raise_failure(completion)
