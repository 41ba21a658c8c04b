"""A request for values from its body to what the engine gives for each of its texts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from starlette.requests import Request

from cadence.core.errors import AbortedError, AdapterError, InvalidRequestError
from cadence.core.pooled.pooled_outputs import PoolingOutput, PoolingRequestOutput
from cadence.core.pooled.pooling import PoolingSpec
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.server.chat.failures import aborted
from cadence.entrypoints.server.chat.request_errors import as_sent
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.request_deadline import in_time
from cadence.entrypoints.server.http.request_ids import request_id
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.pooling.answers import FloatArray, check_values
from cadence.entrypoints.server.protocol.pooling.fields import PooledFields
from cadence.entrypoints.server.protocol.sampling import priority_of
from cadence.entrypoints.server.routes.pooling.in_flight import all_parts
from cadence.entrypoints.server.routes.pooling.prompts import NamedPrompt
from cadence.entrypoints.server.routes.state import ServerState

T = TypeVar("T")

MANY_VALUES = 65_536  # more are written beside the event loop


@dataclass(frozen=True, slots=True)
class PooledWork:
    """A request, checked: the model can do what it asks for."""

    body: PooledFields
    params: PoolingParams
    spec: PoolingSpec
    name: str  # of the request
    model: str  # that signs the answer
    request: Request

    def check_size(self, prompts: Sequence[NamedPrompt], state: ServerState) -> None:
        """That an answer can hold its values."""
        pooling = state.llm.config.pooling
        entries = self.spec.dimensions or pooling.size if self.spec.head == "embed" else len(pooling.labels)
        vectors = sum(len(prompt.token_ids) for prompt in prompts) if self.spec.by_token else len(prompts)
        check_values(vectors * entries, prompts[0].where.partition("[")[0])


@dataclass(frozen=True, slots=True)
class PooledText(Generic[T]):
    """What one text became."""

    value: T
    num_tokens: int
    num_cached: int


def checked_work(
    body: PooledFields, params: PoolingParams, prefix: str, request: Request, state: ServerState
) -> PooledWork:
    """prefix: of the request's name"""
    return PooledWork(
        body=body,
        params=params,
        spec=_spec(body, params, state),
        name=f"{prefix}{body.request_id}" if body.request_id else request_id(request, prefix),
        model=state.check_model(body.model),
        request=request,
    )


def _spec(body: PooledFields, params: PoolingParams, state: ServerState) -> PoolingSpec:
    """Where the path says what is asked, no field is to blame."""
    try:
        return state.llm.config.pooling.spec(params)
    except InvalidRequestError as error:
        by_path = error.field == "task" and "task" not in body.model_fields_set
        raise InvalidRequestError(str(error), "" if by_path else error.field, error.reason) from None


async def pooled_values(
    work: PooledWork, prompts: Sequence[NamedPrompt], state: ServerState, shape: Callable[[FloatArray], T]
) -> list[PooledText[T]]:
    """Of every prompt, in order. `shape` makes of its values what the answer needs, as soon as they come."""
    engine = _EngineCalls(work, state)

    async def one(number: int) -> PooledText[T]:
        output = await engine.output(number, prompts[number])
        values_np = np.asarray(output.outputs.data, dtype=np.float32)
        many = values_np.size > MANY_VALUES
        value = await asyncio.to_thread(shape, values_np) if many else shape(values_np)
        return PooledText(value, len(output.prompt_token_ids), output.num_cached_tokens)

    return await in_time(all_parts(len(prompts), one), state.options.request_deadline)


class _EngineCalls:
    """What all texts of a request tell the engine."""

    def __init__(self, work: PooledWork, state: ServerState) -> None:
        scope = work.request.scope
        self._work = work
        self._state = state
        self._prompt: dict[str, Any] = {
            "cache_salt": state.tenants.cache_salt(scope, work.body.cache_salt),
            "tenant": tenant_of(scope),
            "data_parallel_rank": state.data_parallel_rank(work.request),
        }
        self._options: dict[str, Any] = {
            "priority": priority_of(work.body, work.request.headers),
            **state.adapters.given(work.body.model),
        }

    async def output(self, number: int, prompt: NamedPrompt) -> PoolingRequestOutput[PoolingOutput]:
        work, state = self._work, self._state
        name = state.tenants.engine_id(work.request.scope, f"{work.name}-{number}")
        given: Any = {"prompt_token_ids": prompt.token_ids, "second_from": prompt.second_from, **self._prompt}
        source = state.llm.encode(given, work.params, name, **self._options)
        try:
            async with aclosing(cast(AsyncGenerator[Any, None], source)) as outputs:
                return await anext(outputs)
        except InvalidRequestError as error:
            raise as_sent(error, {"prompt": prompt.where}) from None
        except AbortedError:
            raise aborted() from None
        except AdapterError as error:
            raise ApiError(400, f"The request failed: {error}.", param="model") from None


def list_answer(
    work: PooledWork, data: Sequence[dict[str, Any]], values: Sequence[PooledText[Any]], state: ServerState
) -> dict[str, Any]:
    """As OpenAI and vLLM shape it."""
    return {
        "id": work.name,
        "object": "list",
        "created": int(time.time()),
        "model": work.model,
        "data": data,
        "usage": usage_of(values, state),
    }


def usage_of(values: Sequence[PooledText[Any]], state: ServerState) -> dict[str, Any]:
    tokens = sum(one.num_tokens for one in values)
    details = None
    if state.options.enable_prompt_tokens_details:
        details = {"cached_tokens": sum(one.num_cached for one in values)}
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": details,
    }
