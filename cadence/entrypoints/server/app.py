"""The application: routes, the layers around them, and the state they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from cadence.config.server.serve_options import ServeOptions
from cadence.config.version import __version__
from cadence.core.errors import CadenceError
from cadence.engine.log_queue import LogQueue, NullLogQueue
from cadence.entrypoints.server.http.auth import Authentication
from cadence.entrypoints.server.http.body_limits import BodyLimits
from cadence.entrypoints.server.http.boundary import Boundary
from cadence.entrypoints.server.http.early_rejection import EarlyRejection
from cadence.entrypoints.server.http.errors import ErrorReply, reply_for, route_path
from cadence.entrypoints.server.http.load_report import Metrics
from cadence.entrypoints.server.http.middleware import load_middleware
from cadence.entrypoints.server.http.missing_paths import why_missing
from cadence.entrypoints.server.http.tenants import Tenants
from cadence.entrypoints.server.make_state import ServerParts, make_state
from cadence.entrypoints.server.openapi import install_schema
from cadence.entrypoints.server.routes import (
    adapters,
    chat,
    chat_batch,
    completions,
    develop,
    engine_state,
    generate,
    health,
    invocations,
    messages,
    metrics,
    models,
    render,
    responses,
    tokenize,
)
from cadence.entrypoints.server.routes.audio import speech
from cadence.entrypoints.server.routes.peers import NO_PEERS, Peers
from cadence.entrypoints.server.routes.pooling import cohere_embed, generative_scoring, scores, vectors
from cadence.entrypoints.server.routes.realtime import conversation
from cadence.entrypoints.server.served import OneModel
from cadence.entrypoints.webui import page

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM

NO_LOGS = NullLogQueue()
EXPOSED_HEADERS = ("X-Request-Id", "X-Cadence-Ignored", "Retry-After")  # what pages of other origins may read
ROUTES = (
    health, models, completions, chat, chat_batch, responses, messages, generate, conversation, render, invocations,
    tokenize, metrics, engine_state, vectors, cohere_embed, scores, generative_scoring, speech,
)  # fmt: skip


def create_app(
    llm: AsyncLLM, options: ServeOptions, logs: LogQueue | NullLogQueue = NO_LOGS, peers: Peers = NO_PEERS
) -> FastAPI:
    app = new_app(options, [routes.router for routes in ROUTES])
    state = app.state.server = make_state(llm, options, ServerParts.of(options, logs, peers), peers)
    app.state.served = OneModel(state)
    innermost: list[Layer] = [partial(BodyLimits, options=options), partial(EarlyRejection, admission=state.admission)]
    add_layers(app, options, state.tenants, innermost, lambda scope: state.llm.get_metrics())
    return app


def new_app(options: ServeOptions, routers: Sequence[APIRouter]) -> FastAPI:
    """Without layers. routers: of the groups of endpoints that all servers have"""
    documented = not options.disable_fastapi_docs
    app = FastAPI(
        title="Cadence",
        version=__version__,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load their scripts from other hosts; ours does not
        redoc_url=None,
        openapi_url="/openapi.json" if documented else None,
    )
    for router in routers:
        app.include_router(router)
    app.include_router(page.page_router())
    if options.enable_tokenizer_info_endpoint:
        app.include_router(tokenize.info_router)
    if options.allow_runtime_lora_updating:
        app.include_router(adapters.router)
    if options.server_dev_mode:
        app.include_router(develop.router)
    if documented:
        app.include_router(page.docs_router())
    for kind in (CadenceError, HTTPException, RequestValidationError, ValidationError):
        app.add_exception_handler(kind, _answer_error)
    install_schema(app)
    return app


Layer = Callable[..., Any]  # takes the application that it lies around


def add_layers(
    app: FastAPI, options: ServeOptions, tenants: Tenants, innermost: Sequence[Layer], metrics: Metrics
) -> None:
    """From the innermost to the outermost. Pure ASGI, all of them: streams and disconnects pass through untouched."""
    for layer in innermost:
        app.add_middleware(layer)
    if options.api_key or options.tenant_config:
        app.add_middleware(Authentication, tenants=tenants, protect_metrics=options.protect_metrics)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
            allow_credentials=options.allow_credentials,
            expose_headers=EXPOSED_HEADERS,
        )
    for layer in load_middleware(options.middleware):
        app.add_middleware(layer)
    app.add_middleware(Boundary, options=options, metrics=metrics)


async def _answer_error(request: Request, error: Exception) -> Response:
    path = route_path(request.scope)
    if isinstance(error, HTTPException) and error.status_code == 404 and (why := why_missing(path)):
        return ErrorReply(404, why, code="not_implemented").response(path)
    return reply_for(error).response(path)
