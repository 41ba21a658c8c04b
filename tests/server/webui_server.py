"""The page on a real port with an API behind it that plays a script: what a model would say, how it would fail."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cadence.core.contract.engine_state import CACHED, FIRST_OWNER, FREE, EngineState, EngineStats, RequestView
from cadence.core.draft_stats import NO_DRAFTS
from cadence.engine.metrics.metric import Counter, Histogram, Metric
from cadence.entrypoints.server.http.tenants import Tenants
from cadence.entrypoints.server.routes import engine_state
from cadence.entrypoints.server.routes.peers import NO_PEERS
from cadence.entrypoints.webui.page import page_router

BLOCKS = 240
WORDS = ["The", " sky", " is", " blue", " because", " air", " scatters", " short", " waves", ".", "\n"]
KEY = "sesame"


class ScriptedEngine:
    """Counts the requests it streams; the block map grows with them."""

    model_name = "scripted"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []  # bodies of the chat requests
        self.aborted = 0
        self.polls = 0
        self.speculates = False
        self.modalities = ["text"]
        self.cards: list[dict[str, Any]] = []  # of several models, in place of one of this engine
        self.open: dict[str, int] = {}  # request id -> tokens sent
        self.tokens = Counter("vllm:generation_tokens", {})
        self.drafts = NO_DRAFTS  # every fourth token begins a forward that verified four and kept three
        self.first = Histogram("vllm:time_to_first_token_seconds", {}, (0.1, 1.0))

    async def engine_states(self) -> list[EngineState]:
        return [await self.engine_state()]

    async def engine_state(self) -> EngineState:
        self.polls += 1
        running = [RequestView(name, 20, count, 20 + count, 0) for name, count in self.open.items()]
        owners = [FREE] * BLOCKS
        owners[:40] = [CACHED] * 40
        for index, view in enumerate(running):
            held = 2 + view.output_tokens // 4
            owners[60 + index * 20 : 60 + index * 20 + held] = [FIRST_OWNER + index] * held
        held = sum(owner >= FIRST_OWNER for owner in owners)
        seconds = [0.004 + 0.001 * math.sin(step) for step in range(min(64, self.tokens.value))]
        stats = EngineStats(
            len(running), 0, held / BLOCKS, prefix_queries=100, prefix_hits=25, num_preemptions=3, drafts=self.drafts
        )
        return EngineState(running, [], owners, 16, stats, self.tokens.value, seconds)

    def get_metrics(self) -> list[Metric]:
        return [self.tokens, self.first]

    async def stream(self, body: dict[str, Any], delay: float) -> AsyncGenerator[dict[str, Any], None]:
        """`max_tokens` words, over and over, with what else might have been said."""
        name, began = f"chatcmpl-{len(self.asked)}", time.monotonic()
        self.open[name] = 0
        try:
            endless = body["messages"][-1]["content"] == "Without end"
            for step in range(body.get("max_tokens", 100_000 if endless else 40)):
                await asyncio.sleep(0.001 if endless else delay)
                if step == 0:
                    self.first.observe(time.monotonic() - began)
                self.open[name] += 1
                self.tokens.value += 1
                share = 0.05 + 0.9 * ((step * 7) % 10) / 10
                chunk = _chunk(name, WORDS[step % len(WORDS)], body.get("logprobs", False), share)
                if self.speculates and body.get("speculative"):
                    self.drafts = self.drafts.add([(4, 4)] if step % 4 == 3 else [])
                    chunk["choices"][0]["drafted"] = [] if step % 4 == 3 else [0]
                yield chunk
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted += 1
            raise
        finally:
            del self.open[name]


def _chunk(name: str, word: str, logprobs: bool, share: float) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": word}, "finish_reason": None}
    if logprobs:
        others = [_token(word, share), _token(" <b>perhaps</b>", (1 - share) / 2)]
        choice["logprobs"] = {"content": [{**_token(word, share), "top_logprobs": others}]}
    return {"id": name, "object": "chat.completion.chunk", "choices": [choice]}


def _token(text: str, share: float) -> dict[str, Any]:
    return {"token": text, "logprob": math.log(share), "bytes": list(text.encode())}


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)


class ClosingResponse(StreamingResponse):
    """Its play ends with the connection, not when the last reference to it is collected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


def build(engine: ScriptedEngine, delay: float = 0.02, key: str = "") -> FastAPI:
    """What the last message begins with chooses the play: "echo:" text, "tokens:" JSON chunks, "fail", "cut"."""
    app = FastAPI()
    app.state.server = SimpleNamespace(llm=engine, model_names=[engine.model_name], tenants=Tenants(()), peers=NO_PEERS)
    app.include_router(engine_state.router)
    app.include_router(page_router())

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Response:
        api = request.url.path.startswith(("/v1", "/engine"))
        if key and api and request.headers.get("authorization") != f"Bearer {key}":
            return _error(401, "An API key is required: Authorization: Bearer KEY.")
        response: Response = await call_next(request)
        return response

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": engine.model_name, "max_model_len": 2048, "input_modalities": engine.modalities}
        return {"object": "list", "data": engine.cards or [card]}

    @app.post("/v1/embeddings", response_model=None)
    async def embed(request: Request) -> Response:
        """A text is the direction that its first number says, in degrees."""
        body = await request.json()
        engine.asked.append(body)
        if "refuse" in body["input"]:
            return _error(400, "this model cannot <b>embed</b>: it generates text")
        angles = [math.radians(float(text.split()[0])) for text in body["input"]]
        data = [{"index": at, "embedding": [math.cos(one), math.sin(one), 0.0]} for at, one in enumerate(angles)]
        return JSONResponse({"data": data, "usage": {"prompt_tokens": 7 * len(data)}})

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        body = await request.json()
        engine.asked.append(body)
        if body.get("temperature", 0) > 2:
            return _error(400, "temperature must be at most 2, got <b>9</b>.")
        return ClosingResponse(_play(engine, body, delay), media_type="text/event-stream")

    return app


async def _play(engine: ScriptedEngine, body: dict[str, Any], delay: float) -> AsyncIterator[str]:
    said = body["messages"][-1]["content"]  # after its pictures, if there are some
    text = said if isinstance(said, str) else said[-1].get("text", "")
    verb, _, rest = text.partition(":")
    yield _event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    if verb == "echo":
        yield _event({"id": "x", "choices": [{"index": 0, "delta": {"content": rest}}]})
    elif verb == "tokens":
        for choice in json.loads(rest):
            yield _event({"id": "x", "choices": [{"index": 0, **choice}]})
    else:
        count = 0
        async with aclosing(engine.stream(body, delay)) as chunks:
            async for chunk in chunks:
                yield _event(chunk)
                count += 1
                if verb == "cut" and count == 5:
                    return
                if verb == "fail" and count == 5:
                    yield _event({"error": {"message": "The engine lost <i>this</i> request.", "code": 500}})
                    return
        yield _event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        yield _event({"id": "x", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count}})
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """The app's address, while it is served."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 240
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
