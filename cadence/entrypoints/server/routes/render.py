"""/v1/completions/render, /v1/chat/completions/render: what a request is as token ids. Nothing is generated."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.engine.text.prompts import TokensPrompt
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.http.stream import json_response
from cadence.entrypoints.server.protocol.body import body_schema
from cadence.entrypoints.server.protocol.chat import ChatCompletionBody
from cadence.entrypoints.server.protocol.common import GenerationBody
from cadence.entrypoints.server.protocol.completions import CompletionBody
from cadence.entrypoints.server.protocol.render import parse_rendered, rendered
from cadence.entrypoints.server.routes import chat, completions
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.media.vectors import PromptVectors

router = APIRouter(tags=["tokens"])


@router.post("/v1/completions/render", openapi_extra=body_schema(CompletionBody))
async def render_completion(request: Request, state: State) -> Response:
    work, offsets = await state.bodies.read(request, lambda raw: _completion(raw, request, state), held=True)
    body, answers = work.body, []
    for number, given in enumerate(work.prompts):
        if isinstance(given, PromptVectors):
            raise InvalidRequestError("prompt_embeds cannot be used: vectors have no token ids", "prompt_embeds")
        prompt = await completions.prompt_of(given, body, state, "")
        rendered = _rendered_request(body, work.params, prompt, state)
        if offsets:
            rendered["token_offsets"] = await _offsets(prompt, body.add_special_tokens is not False, state)
        answers.append({"request_id": f"{work.name}-{number}", **rendered})
        await asyncio.sleep(0)  # others have a turn between two of many short ones
    return json_response(answers)


@router.post("/v1/chat/completions/render", openapi_extra=body_schema(ChatCompletionBody))
async def render_chat(request: Request, state: State) -> Response:
    body, offsets, name, job = await state.bodies.read(request, lambda raw: _chat(raw, request, state), held=True)
    prompt, params = await state.chat.prepare(job)
    rendered = _rendered_request(body, params, prompt, state)
    if offsets:
        rendered["token_offsets"] = await _offsets(prompt, job.add_special_tokens, state)
    return json_response({"request_id": name, **rendered})


def _completion(raw: bytes, request: Request, state: ServerState) -> tuple[completions.Work, bool]:
    body, offsets = parse_rendered(CompletionBody, raw, state.ignored.of(request))
    return completions.checked_work(body, request, state), offsets


def _chat(raw: bytes, request: Request, state: ServerState) -> tuple[ChatCompletionBody, bool, str, ChatJob]:
    body, offsets = parse_rendered(ChatCompletionBody, raw, state.ignored.of(request))
    name, _, job = chat.checked_job(body, request, state)
    return body, offsets, name, job


def _rendered_request(
    body: GenerationBody, params: SamplingParams, prompt: TokensPrompt, state: ServerState
) -> dict[str, Any]:
    model = state.check_model(body.model)
    return rendered(body, params, model, prompt["prompt_token_ids"], state.llm.config.model.max_model_len)


async def _offsets(prompt: TokensPrompt, special: bool, state: ServerState) -> list[tuple[int, int]] | None:
    """None for a prompt of ids."""
    if "prompt" not in prompt:
        return None
    return await state.llm.texts.offsets(prompt["prompt"], prompt["prompt_token_ids"], special)
