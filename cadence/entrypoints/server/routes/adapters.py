"""Adapters while the server runs, with `--allow-runtime-lora-updating`."""

from __future__ import annotations

import contextlib
import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from cadence.core.errors import EngineDeadError
from cadence.core.lora_request import LoRARequest
from cadence.core.sampling_params import SamplingParams
from cadence.core.shown import shown
from cadence.entrypoints.server.http.errors import ApiError, not_found
from cadence.entrypoints.server.protocol.body import RequestBody, body_schema, parse_body
from cadence.entrypoints.server.routes.served_adapters import AdapterPathError, name_taken
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["adapters"])


class LoadBody(RequestBody):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadBody(RequestBody):
    lora_name: str
    lora_int_id: int | None = None  # the name says it


@router.post("/v1/load_lora_adapter", openapi_extra=body_schema(LoadBody))
async def load_lora_adapter(request: Request, state: State) -> Response:
    """Serves an adapter under its name from now on, once a token was written with it and every process knows it."""
    body = await state.bodies.read(request, lambda raw: parse_body(LoadBody, raw, state.ignored.of(request)))
    try:
        adapter = state.adapters.check(body.lora_name, body.lora_path)
    except AdapterPathError as error:
        raise not_found(str(error), error.field, "adapter_not_found") from None
    adapter.load_inplace = body.load_inplace
    adapter.lora_int_id = await state.adapter_link.take_number(adapter.lora_int_id)
    await _try(adapter, state)
    state.adapters.check(body.lora_name, body.lora_path)  # the name may have been taken meanwhile
    if not await state.adapter_link.add(adapter):
        raise name_taken(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter", openapi_extra=body_schema(UnloadBody))
async def unload_lora_adapter(request: Request, state: State) -> Response:
    """No further request gets it; those that run go on. Its files are read again when it is loaded again."""
    body = await state.bodies.read(request, lambda raw: parse_body(UnloadBody, raw, state.ignored.of(request)))
    adapter = await state.adapter_link.remove(body.lora_name)
    if adapter is None:
        raise not_found(
            f"lora_name {shown(body.lora_name)} is no adapter that is served", "lora_name", "adapter_not_found"
        )
    with contextlib.suppress(EngineDeadError):  # an engine that starts has none
        await state.llm.remove_lora(adapter.lora_int_id)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _try(adapter: LoRARequest, state: ServerState) -> None:
    """What cannot be read, or does not fit the model, is refused before a request asks for it."""
    name, params = f"lora-{secrets.token_hex(8)}", SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    async for output in state.llm.generate({"prompt_token_ids": [0]}, params, name, lora_request=adapter):
        if output.outputs[0].finish_reason == "error":
            raise ApiError(400, f"{output.outputs[0].stop_reason}.", param="lora_path", code="bad_adapter")
