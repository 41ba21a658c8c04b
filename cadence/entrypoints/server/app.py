"""The application: routes, the layers around them, and the state they share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from cadence.audio.limits import DEFAULT_LIMITS, AudioLimits
from cadence.config.engine_config import EngineConfig
from cadence.config.serve_options import ServeOptions
from cadence.config.tenants import tenants_of
from cadence.config.version import __version__
from cadence.core.errors import CadenceError
from cadence.engine.log_queue import LogQueue, NullLogQueue
from cadence.entrypoints.conversation import read_template
from cadence.entrypoints.server.chat.engine import ChatEngine
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.chat.format_tables import load_formats
from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.http.auth import Authentication
from cadence.entrypoints.server.http.bodies import BodyReader
from cadence.entrypoints.server.http.body_limits import BodyLimits
from cadence.entrypoints.server.http.boundary import Boundary
from cadence.entrypoints.server.http.early_rejection import EarlyRejection
from cadence.entrypoints.server.http.errors import ErrorReply, reply_for, route_path
from cadence.entrypoints.server.http.ignored import IgnoredFields
from cadence.entrypoints.server.http.json_limits import JsonLimits
from cadence.entrypoints.server.http.middleware import load_middleware
from cadence.entrypoints.server.http.missing_paths import why_missing
from cadence.entrypoints.server.http.request_deadline import with_deadline
from cadence.entrypoints.server.http.tenant_ledger import open_ledger
from cadence.entrypoints.server.http.tenants import Tenants
from cadence.entrypoints.server.openapi import install_schema
from cadence.entrypoints.server.responses.client import ResponseClient
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
from cadence.entrypoints.server.routes.served_adapters import served_at_start
from cadence.entrypoints.server.routes.state import ServerState
from cadence.entrypoints.speech.open import open_speech
from cadence.entrypoints.webui import page

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM

NO_LOGS = NullLogQueue()
EXPOSED_HEADERS = ("X-Request-Id", "X-Cadence-Ignored", "Retry-After")  # what pages of other origins may read
ROUTES = (
    health, models, completions, chat, chat_batch, responses, messages, generate, render, invocations, tokenize,
    metrics, engine_state, vectors, cohere_embed, scores, generative_scoring, speech,
)  # fmt: skip


def create_app(
    llm: AsyncLLM, options: ServeOptions, logs: LogQueue | NullLogQueue = NO_LOGS, peers: Peers = NO_PEERS
) -> FastAPI:
    documented = not options.disable_fastapi_docs
    app = FastAPI(
        title="Cadence",
        version=__version__,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load their scripts from other hosts; ours does not
        redoc_url=None,
        openapi_url="/openapi.json" if documented else None,
    )
    app.state.server = _make_state(llm, options, logs, peers)
    for routes in ROUTES:
        app.include_router(routes.router)
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
    _add_layers(app, options)
    install_schema(app)
    return app


def _make_state(llm: AsyncLLM, options: ServeOptions, logs: LogQueue | NullLogQueue, peers: Peers) -> ServerState:
    """Of several processes each admits its share."""
    share, specs = options.api_server_count, tenants_of(options)
    admission = AdmissionControl(
        max_requests=-(-(_max_running(llm.config) + options.max_queued_requests) // share),
        max_tokens=-(-options.max_queued_tokens // share),
        max_model_len=llm.config.model.max_model_len,
        ledger=open_ledger(specs, peers.tenant_ledger),
    )
    llm.inputs.weigh({spec.name: spec.weight for spec in specs})
    llm.metrics.written = admission.ledger.add_tokens
    timed = with_deadline(llm, options.request_deadline)
    names = list(options.served_model_name) or [llm.model_name]
    adapters = served_at_start(options.lora_modules, names, options.lora_root, llm.config.lora.enabled)
    own = {"stream_interval": options.stream_interval} if options.stream_interval > 1 else {}
    return ServerState(
        llm=timed,
        options=options,
        default_sampling=llm.default_sampling | own,
        admission=admission,
        chat=ChatEngine(timed, options, load_formats(options)),
        bodies=BodyReader(JsonLimits.of(options)),
        chat_template=read_template(options.chat_template or llm.config.tokenizer.chat_template),
        tenants=Tenants(options.api_key, options.share_prefix_cache, peers.tenant_salt, specs),
        logs=logs,
        ignored=IgnoredFields(options.strict_requests),
        peers=peers,
        responses=ResponseClient(peers.open_store, timed.abort),
        speech=open_speech(timed, raise_failure, _audio_limits(options)),
        adapters=adapters,
        adapter_link=peers.open_adapters(adapters),
    )


def _audio_limits(options: ServeOptions) -> AudioLimits:
    return replace(DEFAULT_LIMITS, num_bytes=options.max_audio_bytes, seconds=float(options.max_audio_seconds))


def _max_running(config: EngineConfig) -> int:
    return config.scheduler.max_num_seqs * config.parallel.data_parallel_size


def _add_layers(app: FastAPI, options: ServeOptions) -> None:
    """From the innermost to the outermost. Pure ASGI, all of them: streams and disconnects pass through untouched."""
    app.add_middleware(BodyLimits, options=options)
    app.add_middleware(EarlyRejection, admission=app.state.server.admission)
    if options.api_key or options.tenant_config:
        tenants, closed = app.state.server.tenants, options.protect_metrics
        app.add_middleware(Authentication, tenants=tenants, protect_metrics=closed)
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
    app.add_middleware(Boundary, options=options, metrics=app.state.server.llm.get_metrics)


async def _answer_error(request: Request, error: Exception) -> Response:
    path = route_path(request.scope)
    if isinstance(error, HTTPException) and error.status_code == 404 and (why := why_missing(path)):
        return ErrorReply(404, why, code="not_implemented").response(path)
    return reply_for(error).response(path)
