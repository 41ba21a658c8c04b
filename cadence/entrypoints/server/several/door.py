"""The layer that finds the model a request names, has it brought into memory, and hands the request to it.

It lies within the one that reads bodies. A request whose client leaves while it waits is cancelled there; the load goes
on.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.core.errors import CadenceError
from cadence.entrypoints.server.http.bodies import BODY, BodyReader
from cadence.entrypoints.server.http.early_rejection import GUARDED
from cadence.entrypoints.server.http.errors import ApiError, reply_for, route_path, unavailable
from cadence.entrypoints.server.http.json_limits import JsonLimits, check_json
from cadence.entrypoints.server.http.uploads import UPLOAD
from cadence.entrypoints.server.routes.state import MODEL_STATE
from cadence.entrypoints.server.several.catalog import CLOSED, RETRY_S
from cadence.entrypoints.server.several.entry import (
    ModelBusyError,
    ModelFailedError,
    ModelsClosedError,
    ModelTooLargeError,
)
from cadence.entrypoints.server.several.models import ServedModels

REALTIME = "/v1/realtime"  # a socket holds its model as a request does
RESPONSES = "/v1/responses/"  # below it are responses by their ids
NAMING_FIELDS = {"/v1/unload_lora_adapter": "lora_name"}  # instead of `model`


Request = tuple[Scope, Receive, Send]


class _NamedModel(msgspec.Struct):
    """The rest of a body is skipped, and read by the route."""

    model: Any = None
    lora_name: Any = None


class RoutePaths:
    """Which paths lead to a model."""

    def __init__(self, working: list[APIRouter], looking: list[APIRouter]) -> None:
        """working: needs a model in memory. looking: asks of one that is, and brings none there"""
        self._working = _methods(working)
        self._looking = _methods(looking)

    def is_working(self, scope: Scope) -> bool:
        return scope["method"] in self._working.get(route_path(scope), ())

    def is_looking(self, scope: Scope) -> bool:
        return scope["method"] in self._looking.get(route_path(scope), ())


def _methods(routers: list[APIRouter]) -> dict[str, set[str]]:
    """By path, of paths without a name in them."""
    found: dict[str, set[str]] = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and "{" not in route.path:
                found.setdefault(route.path, set()).update(route.methods or ())
    return found


class ModelDoor:
    def __init__(self, app: ASGIApp, models: ServedModels, paths: RoutePaths) -> None:
        models.app = app
        self._app = app
        self._models = models
        self._paths = paths
        self._reader: BodyReader = models.parts.bodies
        self._limits = JsonLimits.of(models.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = scope, receive, send
        if scope["type"] == "websocket" and route_path(scope) == REALTIME:
            await self._work(request)
        elif scope["type"] != "http":
            await self._app(*request)
        elif self._paths.is_working(scope):
            await self._work(request)
        elif self._paths.is_looking(scope):
            await self._look(request)
        elif route_path(scope).startswith(RESPONSES):
            await self._hand_to(self._app, self._models.shared, request)
        else:
            await self._app(*request)

    async def _work(self, request: Request) -> None:
        scope = request[0]
        try:
            if self._models.is_draining:
                raise ModelsClosedError(CLOSED)
            name = self._models.find(await self._named(scope))
            running = await self._models.take(name)
        except CadenceError as error:
            return await _refuse(error, request)
        try:
            app = running.app if route_path(scope) in GUARDED else self._app
            await self._hand_to(app, running.state, request)
        finally:
            self._models.give_back(name, running)

    async def _look(self, request: Request) -> None:
        try:
            name = self._models.find(_queried(request[0]))
        except CadenceError as error:
            return await _refuse(error, request)
        running = self._models.catalog.ready(name)
        if running is not None:
            return await self._hand_to(self._app, running.state, request)
        state = self._models.entry(name).shown_state
        absent = ApiError(409, f"The model `{name}` is not in memory: it is {state}.", code="model_not_loaded")
        await _refuse(absent, request)

    async def _hand_to(self, app: ASGIApp, state: object, request: Request) -> None:
        """A connection keeps its last scope: what is in there would outlive the model."""
        scope = request[0]
        scope[MODEL_STATE] = state
        try:
            await app(*request)
        finally:
            del scope[MODEL_STATE]

    async def _named(self, scope: Scope) -> str | None:
        """The name in the body, or in the query where the body has none."""
        if (upload := scope.get(UPLOAD)) is not None:
            found = next((value for field, value in reversed(upload.fields) if field == "model"), None)
        elif (body := scope.get(BODY)) is not None:
            field = NAMING_FIELDS.get(route_path(scope), "model")
            found = await self._reader.run(body.size, _name_in, body.content, field, self._limits)
        else:
            found = None
        return found or _queried(scope)


def _name_in(content: bytes, field: str, limits: JsonLimits) -> str | None:
    check_json(content, limits)
    try:
        found = getattr(msgspec.json.decode(content, type=_NamedModel), field)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    if found is not None and not isinstance(found, str):
        raise ApiError(400, f"{field}: Input should be a valid string", param=field)
    return found


def _queried(scope: Scope) -> str | None:
    return QueryParams(scope.get("query_string", b"")).get("model")


async def _refuse(error: CadenceError, request: Request) -> None:
    scope, receive, send = request
    await reply_for(told(error)).response(route_path(scope))(scope, receive, send)


def told(error: CadenceError) -> CadenceError:
    """Why a model does not come, as clients are told."""
    message = f"{str(error)[:1].upper()}{str(error)[1:]}."
    if isinstance(error, ModelTooLargeError):
        return ApiError(503, message, code="model_too_large")
    if isinstance(error, ModelFailedError):
        return ApiError(503, message, code="model_failed", headers={"Retry-After": f"{RETRY_S:.0f}"})
    if isinstance(error, ModelBusyError):
        return ApiError(503, message, code="model_not_ready", headers={"Retry-After": "5"})
    if isinstance(error, ModelsClosedError):
        return unavailable("The server is shutting down.")
    return error
