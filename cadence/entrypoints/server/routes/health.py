"""Is it alive, is it working, what is it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.responses import Response

from cadence.config.version import __version__
from cadence.entrypoints.server.http.errors import ApiError, unavailable
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["health"])


@router.get("/livez")
async def alive() -> JSONResponse:
    """The process answers."""
    return JSONResponse({"status": "alive"})


@router.get("/readyz")
async def ready(state: State) -> JSONResponse:
    """Requests are taken, and those that run make progress; 503 while starting again, stuck or shutting down."""
    _check(state)
    return JSONResponse({"status": "ready"})


@router.get("/health")
async def health(state: State) -> Response:
    """As /readyz, with an empty body."""
    _check(state)
    await state.llm.check_health()
    return Response(status_code=200)


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping(state: State) -> Response:
    return await health(state)


@router.get("/version")
async def version() -> JSONResponse:
    return JSONResponse({"version": __version__})


@router.get("/load")
async def load(state: State) -> JSONResponse:
    """How many requests are in flight, in all processes that serve this address."""
    others = (await state.peers.counts()).server
    return JSONResponse({"server_load": state.admission.in_flight + others.get("http_requests_in_flight", 0)})


def _check(state: ServerState) -> None:
    if state.admission.draining:
        raise unavailable("The server is shutting down.")
    if not state.llm.is_ready():
        raise unavailable("The engine is not running; it is being started again, or has given up.")
    if state.is_stuck():
        message = f"The engine makes no progress for {state.llm.last_step_age():.0f} s."
        raise ApiError(503, message, code="engine_unavailable")
