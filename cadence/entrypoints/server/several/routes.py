"""Endpoints that are about all models: which there are, loading and unloading them, health and counts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from cadence.config.version import __version__
from cadence.core.errors import CadenceError, InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.entrypoints.server.http.errors import unavailable
from cadence.entrypoints.server.protocol.body import RequestBody, body_schema, parse_body
from cadence.entrypoints.server.routes.models import ModelPermission
from cadence.entrypoints.server.several.door import told
from cadence.entrypoints.server.several.models import Models, ServedModels
from cadence.entrypoints.server.several.residency import FOREVER
from cadence.entrypoints.server.several.served_model import ServedModel

router = APIRouter(tags=["models"])
health_router = APIRouter(tags=["health"])


class ModelName(RequestBody):
    model: str


@router.get("/models", include_in_schema=False)
@router.get("/v1/models")
async def list_models(models: Models) -> JSONResponse:
    """One card per name, the default model's first, each with its state; then one per adapter."""
    ordered = sorted(models.models.values(), key=lambda model: model.name != models.default)
    cards = [model_card(models, model, name) for model in ordered for name in model.plan.entry.names]
    cards += [_adapter_card(models, model, adapter) for model in ordered for adapter in model.adapters]
    return JSONResponse({"object": "list", "data": cards})


@router.post("/v1/models/{name:path}/load")
async def load_model(name: str, models: Models) -> JSONResponse:
    """Brings a model into memory, also one that has failed; answers when it is there."""
    found = _own_name(models, name)
    try:
        await models.load(found)
    except CadenceError as error:
        raise told(error) from None
    return JSONResponse(model_card(models, models.models[found], name))


@router.post("/v1/models/{name:path}/unload")
async def unload_model(name: str, models: Models, force: bool = False) -> JSONResponse:
    """Takes a model out of memory, when its requests are over; with `force` at once, and they end with an error. A
    request that names it brings it back."""
    found = _own_name(models, name)
    was_there = await models.catalog.unload(found, is_cut=force)
    return JSONResponse({**model_card(models, models.models[found], name), "unloaded": was_there})


@router.post("/models/load", openapi_extra=body_schema(ModelName))
async def load_named(request: Request, models: Models) -> JSONResponse:
    """As /v1/models/{name}/load, with the name in the body: as llama.cpp has it."""
    return await load_model(await _name_in(request, models), models)


@router.post("/models/unload", openapi_extra=body_schema(ModelName))
async def unload_named(request: Request, models: Models) -> JSONResponse:
    """As /v1/models/{name}/unload."""
    return await unload_model(await _name_in(request, models), models)


async def _name_in(request: Request, models: ServedModels) -> str:
    parts = models.parts
    body = await parts.bodies.read(request, lambda raw: parse_body(ModelName, raw, parts.ignored.of(request)))
    return body.model


@router.get("/v1/models/{name:path}")
async def get_model(name: str, models: Models) -> JSONResponse:
    model = models.models[_own_name(models, name)]
    adapter = next((adapter for adapter in model.adapters if adapter.lora_name == name), None)
    return JSONResponse(model_card(models, model, name) if adapter is None else _adapter_card(models, model, adapter))


@health_router.get("/livez")
async def alive() -> JSONResponse:
    """The process answers."""
    return JSONResponse({"status": "alive"})


@health_router.get("/readyz")
async def ready(models: Models) -> JSONResponse:
    """Requests are taken, and those that run make progress; 503 while shutting down, or where an engine is stuck."""
    _check(models)
    return JSONResponse({"status": "ready"})


@health_router.get("/health")
async def health(models: Models) -> Response:
    """As /readyz, with an empty body."""
    _check(models)
    return Response(status_code=200)


@health_router.get("/ping")
@health_router.post("/ping", include_in_schema=False)
async def ping(models: Models) -> Response:
    return await health(models)


@health_router.get("/version")
async def version() -> JSONResponse:
    return JSONResponse({"version": __version__})


@health_router.get("/load")
async def load(models: Models) -> JSONResponse:
    """How many requests are in flight; those that wait for a model are."""
    return JSONResponse({"server_load": models.in_flight})


def model_card(models: ServedModels, model: ServedModel, name: str) -> dict[str, Any]:
    """As a server with one model shows it; `max_model_len` is null until the model was loaded once."""
    plan = model.plan
    return {
        "id": name,
        "object": "model",
        "created": models.started,
        "owned_by": "vllm",  # as clients of vLLM know it
        "root": plan.args.model,
        "parent": None,
        "max_model_len": model.max_model_len or plan.args.max_model_len,
        "input_modalities": model.modalities or ["text"],
        "permission": [ModelPermission(id=f"modelperm-{name}", created=models.started).model_dump()],
        "aliases": [other for other in plan.entry.names if other != name],
        "default": model.name == models.default,
        **_residence(models, model.name),
    }


def _residence(models: ServedModels, name: str) -> dict[str, Any]:
    """Where a model is, and since when no request needs it."""
    entry = models.entry(name)
    books, rules = entry.books, entry.books.rules
    is_used = books.users > 0
    return {
        "state": str(entry.shown_state),
        "failure": entry.why or None,
        "pinned": rules.pinned,
        "keep_alive": None if rules.keep_alive == FOREVER else rules.keep_alive,  # seconds; null = until it is needed
        "idle_seconds": models.idle_seconds(name) if entry.num_loads and not is_used else None,
        "requests": {"running": books.users, "waiting": models.catalog.num_waiting(name)},
        "memory": {"needed": books.need, "held": books.held},  # bytes; needed is null until it was found out
        "loads": {"count": entry.num_loads, "last_seconds": round(entry.load_seconds, 3)},
    }


def _adapter_card(models: ServedModels, model: ServedModel, adapter: LoRARequest) -> dict[str, Any]:
    card = model_card(models, model, adapter.lora_name)
    return card | {"root": adapter.lora_path, "parent": model.name, "aliases": []}


def _own_name(models: ServedModels, name: str) -> str:
    if not name:
        raise InvalidRequestError("the path names no model")
    return models.find(name)


def _check(models: ServedModels) -> None:
    """A model that is not there, or has failed, can be asked for; one whose engine is being started again waits."""
    if models.is_draining:
        raise unavailable("The server is shutting down.")
    if models.is_starting:
        raise unavailable("Models are being loaded.")
    for name, running in models.running():
        if running.state.is_stuck():
            age = running.llm.last_step_age()
            raise unavailable(f"The engine of the model `{name}` makes no progress for {age:.0f} s.")
