"""For development, with `--server-dev-mode`: how the server was set up, empty caches, pauses, sleep, other weights."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from cadence.config import env
from cadence.core.errors import AdapterError, InvalidRequestError, WeightsError
from cadence.engine.machine import machine_facts
from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.routes.state import State

router = APIRouter(tags=["development"])


@router.get("/server_info")
async def server_info(request: Request, state: State) -> Response:
    """The engine's settings (`?config_format=text`, or `json`), vLLM's variables that are set, and the machine."""
    wanted = request.query_params.get("config_format", "text")
    if wanted not in ("text", "json"):
        raise InvalidRequestError("config_format must be text or json", "config_format")
    config = state.llm.config
    shown: Any = str(config) if wanted == "text" else _plain(dataclasses.asdict(config))
    variables = {name: value for name, value in env.peer_variables().items() if not env.is_credential(name, value)}
    machine = dict(await asyncio.to_thread(machine_facts))
    return json_response({"vllm_config": shown, "vllm_env": variables, "system_env": machine})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(state: State, reset_running_requests: bool = False) -> Response:
    """Forgets all cached prefixes; not while requests run (`success` is false), unless `reset_running_requests` has
    them computed again."""
    return json_response({"success": await state.llm.reset_prefix_cache(reset_running_requests)})


@router.post("/reset_mm_cache")
@router.post("/reset_encoder_cache")
async def reset_encoder_cache(state: State) -> Response:
    """Forgets what was made of pictures and sounds; requests that run have theirs encoded again. This process forgets
    the names under which they were sent, too."""
    await state.llm.reset_mm_cache()
    return json_response({"success": True})


@router.post("/pause")
async def pause(
    state: State, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
) -> Response:
    """New requests wait until /resume; those that run are aborted, waited for (`mode=wait`), or go on then
    (`mode=keep`)."""
    await state.llm.pause_generation("wait" if wait_for_inflight_requests else mode, clear_cache)
    return json_response({"status": "paused"})


@router.post("/resume")
async def resume(state: State) -> Response:
    await state.llm.resume_generation()
    return json_response({"status": "resumed"})


@router.get("/is_paused")
async def is_paused(state: State) -> Response:
    return json_response({"is_paused": await state.llm.is_paused()})


@router.post("/sleep")
async def sleep(state: State, level: int = 1, mode: str = "keep") -> Response:
    """Gives memory back: weights go to host memory (`level=1`), or are dropped and read again (`level=2`). Requests
    wait until /wake_up; those that run, too, or they are aborted (`mode=abort`) or waited for (`mode=wait`) before."""
    await state.llm.sleep(level, mode)
    return Response(status_code=200)


@router.post("/wake_up")
async def wake_up(request: Request, state: State) -> Response:
    """All of it, or `?tags=weights` and `?tags=kv_cache` one after the other."""
    await state.llm.wake_up(request.query_params.getlist("tags") or None)
    return Response(status_code=200)


@router.get("/is_sleeping")
async def is_sleeping(state: State) -> Response:
    return json_response({"is_sleeping": await state.llm.is_sleeping()})


class RpcBody(BaseModel):
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


class WeightsBody(BaseModel):
    path: str


@router.post("/collective_rpc")
async def collective_rpc(body: RpcBody, state: State) -> Response:
    """A method of vLLM's workers, by its name, on all ranks -> `results`, of each."""
    with _told():
        found = await state.llm.collective_rpc(body.method, body.timeout, body.args, body.kwargs)
    return json_response({"results": _plain(found)})


@router.post("/update_weights")
async def update_weights(body: WeightsBody, state: State) -> Response:
    """Weights of the same shapes from a folder or a .gguf file of the server's machine, in place."""
    with _told():
        await state.llm.update_weights(body.path)
    return json_response({"success": True})


@contextmanager
def _told() -> Generator[None, None, None]:
    """Files that do not fit are the caller's."""
    try:
        yield
    except (WeightsError, AdapterError) as error:
        raise InvalidRequestError(str(error)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
