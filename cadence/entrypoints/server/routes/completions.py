"""/v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.config.engine_config import ModelConfig
from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.engine.text.prompts import PromptType, TokensPrompt, VectorsPrompt
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.chat.request_errors import check_room
from cadence.entrypoints.server.chat.truncation import Truncation
from cadence.entrypoints.server.http.admission import estimate_tokens
from cadence.entrypoints.server.http.direct import DirectStream
from cadence.entrypoints.server.http.merge import merged
from cadence.entrypoints.server.http.request_ids import created, request_id
from cadence.entrypoints.server.http.stream import EventStream, admitted, json_response, started_stream
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.beam import beam_params, shape_of
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.common import usage_wanted
from cadence.entrypoints.server.protocol.completion_answer import CompletionAnswer, CompletionChunks, CompletionView
from cadence.entrypoints.server.protocol.completions import CompletionBody
from cadence.entrypoints.server.protocol.logprobs import TokenNames
from cadence.entrypoints.server.protocol.sampling import EndpointFields, check_weight, priority_of, sampling_params
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.media.vectors import PromptVectors
from cadence.text.service.fill_middle import fill_ends, fill_prompt
from cadence.text.service.text_jobs import Kept
from cadence.text.service.text_service import Encoding

DEFAULT_MAX_TOKENS = 16  # OpenAI's

router = APIRouter(tags=["completions"])


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
async def create_completion(request: Request, state: State) -> Response:
    work = await state.bodies.read(request, lambda raw: _prepare(raw, request, state))
    body, view = work.body, work.view
    entry = state.admission.enter(request, work.size, len(work.prompts) * work.params.n)
    names = [state.tenants.engine_id(request.scope, f"{work.name}-{number}") for number in range(len(work.prompts))]
    outputs = admitted(entry, merged(_sources(work, names, state)), _check_output)
    if body.stream:
        chunks = CompletionChunks(view)
        direct = DirectStream(chunks.text_of)
        started = await started_stream(outputs)
        if len(names) == 1 and view.plain:
            state.llm.tap(names[0], direct)
        return EventStream(chunks.write(started), direct=direct)
    return json_response(await CompletionAnswer(view).read(outputs))


@dataclass(frozen=True, slots=True)
class Work:
    """A request, checked, and how its answer looks."""

    body: CompletionBody
    prompts: list[str | list[int] | PromptVectors]
    size: int  # estimated tokens
    params: SamplingParams
    beam: BeamSearchParams | None  # instead of `params`, of which only the shape of the answer counts then
    view: CompletionView
    name: str
    request: Request


def _prepare(raw: bytes, request: Request, state: ServerState) -> Work:
    return checked_work(parse_body(CompletionBody, raw, state.ignored.of(request)), request, state)


def checked_work(body: CompletionBody, request: Request, state: ServerState) -> Work:
    body.check()
    model = state.check_model(body.model)
    _check_encoder(body, state)
    _check_vectors(body, state)
    prompts = body.prompts()
    chosen = _chosen(body)
    beam = beam_params(body, chosen, DEFAULT_MAX_TOKENS) if body.use_beam_search else None
    params = shape_of(beam, chosen) if beam else _params(body, chosen, state)
    count = len(prompts) * params.n
    if count > state.options.max_completions:
        raise InvalidRequestError(f"prompts times n must be at most {state.options.max_completions}; got {count}", "n")
    check_weight(params, count)
    name = f"cmpl-{body.request_id}" if body.request_id else request_id(request, "cmpl-")
    base = {"id": name, "object": "text_completion", "created": created(request.scope), "model": model}
    return Work(body, prompts, _size(prompts), params, beam, _view(body, state, base), name, request)


async def _sources(work: Work, names: list[str], state: ServerState) -> list[AsyncGenerator[RequestOutput, None]]:
    """The outputs of all prompts, one source each. Every one is tokenised before the first is submitted."""
    body, scope = work.body, work.request.scope
    salt = state.tenants.cache_salt(scope, body.cache_salt)
    rank, priority = state.data_parallel_rank(work.request), priority_of(body, work.request.headers)
    prompts = []
    for given in work.prompts:
        prompt = await _engine_prompt(given, body, state, salt)
        prompts.append(cast(PromptType, {**prompt, "tenant": tenant_of(scope), "data_parallel_rank": rank}))
        await asyncio.sleep(0)  # others have a turn between two of many short ones
    return [_outputs(work, prompt, name, state, priority) for prompt, name in zip(prompts, names, strict=True)]


def _outputs(
    work: Work, prompt: PromptType, engine_id: str, state: ServerState, priority: int
) -> AsyncGenerator[RequestOutput, None]:
    given: dict[str, Any] = {"priority": priority, **state.adapters.given(work.body.model)}
    if work.beam is None:
        outputs = state.llm.generate(prompt, work.params, engine_id, **given)
    else:
        given["skip_special_tokens"] = work.view.skip_special
        outputs = state.llm.beam_search(prompt, work.beam, engine_id, **given)
    return cast(AsyncGenerator[RequestOutput, None], outputs)


async def _engine_prompt(
    given: str | list[int] | PromptVectors, body: CompletionBody, state: ServerState, salt: str
) -> TokensPrompt | VectorsPrompt:
    if isinstance(given, PromptVectors):
        _check_fits(len(given), body.max_tokens, state.llm.config.model)
        return {"prompt_embeds": given.values_np, "cache_salt": salt}
    prompt = await prompt_of(given, body, state, salt)
    if body.echo and "prompt" not in prompt:
        prompt["prompt"] = await state.llm.texts.decode(prompt["prompt_token_ids"], skip_special_tokens=False)
    return prompt


async def prompt_of(given: str | list[int], body: CompletionBody, state: ServerState, salt: str) -> TokensPrompt:
    model = state.llm.config.model
    if body.suffix and isinstance(given, str):
        given = await fill_prompt(given, body.suffix, state.llm.texts, body.add_special_tokens is not False)
    if isinstance(given, list):
        ids = given[slice(*_kept(body, state))]
        _check_fits(len(ids), body.max_tokens, model)
        return {"prompt_token_ids": ids, "cache_salt": salt}
    texts = state.llm.texts
    tokens = await texts.encode(given, Encoding(body.add_special_tokens is not False, _kept(body, state)))
    _check_fits(len(tokens.ids), body.max_tokens, model)
    text = given if len(tokens.ids) == tokens.total else await texts.decode(tokens.ids)
    return {"prompt": text, "prompt_token_ids": tokens.ids, "cache_salt": salt}


def _size(prompts: list[str | list[int] | PromptVectors]) -> int:
    """Estimated tokens."""
    return sum(len(given) if isinstance(given, PromptVectors) else estimate_tokens(given) for given in prompts)


def _kept(body: CompletionBody, state: ServerState) -> Kept:
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    truncation, model = Truncation(body.truncate_prompt_tokens, body.truncation_side), state.llm.config.model
    if model.encoder.exists:  # it has a length of its own
        return truncation.kept(model.encoder.max_len + 1, 1)
    return truncation.kept(model.max_model_len, max_tokens)


def _check_fits(num_prompt: int, max_tokens: int | None, model: ModelConfig) -> None:
    """What an encoder reads takes no room of the output."""
    begins = len(model.encoder.begins) if model.encoder.exists else num_prompt
    check_room(begins, max_tokens, model.max_model_len)


def _check_encoder(body: CompletionBody, state: ServerState) -> None:
    """A prompt is what the encoder reads: it is no beginning of the output."""
    encoder = state.llm.config.model.encoder
    if not encoder.exists:
        return
    if encoder.reads_audio:
        raise InvalidRequestError("this model hears: send a recording to /v1/audio/transcriptions", "model")
    for name, given in (("echo", body.echo), ("suffix", body.suffix)):
        if given:
            raise InvalidRequestError(f"{name} cannot be used: this model's encoder reads the prompt", name)


def _check_vectors(body: CompletionBody, state: ServerState) -> None:
    """Before they are read."""
    if body.has_vectors and not state.llm.config.model.media.takes_vectors:
        message = "prompt_embeds cannot be used: this server was started without --enable-prompt-embeds"
        raise InvalidRequestError(message, "prompt_embeds")


def _chosen(body: CompletionBody) -> EndpointFields:
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(body.max_tokens, 1)
    return EndpointFields(max_tokens, body.num_logprobs(), logprob_token_ids=body.logprob_token_ids)


def _params(body: CompletionBody, chosen: EndpointFields, state: ServerState) -> SamplingParams:
    params = sampling_params(body, state.default_sampling, chosen)
    if body.suffix and not params.ignore_eos:
        params.stop_token_ids = [*(params.stop_token_ids or ()), *fill_ends(state.llm.tokenizer)]
    logprobs = chosen.logprobs
    if body.echo and logprobs is not None and params.prompt_logprobs != -1:
        params.prompt_logprobs = -1 if logprobs == -1 else max(logprobs, params.prompt_logprobs or 0)
    return params


def _shown_logprobs(body: CompletionBody) -> int | None:
    """Tokens that are asked for by id are all shown."""
    return -1 if body.logprob_token_ids else body.num_logprobs()


def _view(body: CompletionBody, state: ServerState, base: dict[str, Any]) -> CompletionView:
    options = state.options
    tokenizer = state.llm.tokenizer
    usage, continuous = usage_wanted(body.stream_options, options.enable_force_include_usage)
    return CompletionView(
        base=base,
        names=TokenNames(tokenizer, body.return_tokens_as_token_ids or options.return_tokens_as_token_ids),
        n=body.n or 1,
        echo=bool(body.echo),
        ids_given=body.ids_given,
        silent=body.max_tokens == 0,
        skip_special=body.skip_special_tokens is not False,
        logprobs=_shown_logprobs(body),
        prompt_logprobs=body.prompt_logprobs is not None,
        token_ids=bool(body.return_token_ids),
        drafted=body.speculative is not None and bool(body.speculative.return_drafted),
        include_usage=usage,
        continuous_usage=continuous,
        usage_details=options.enable_prompt_tokens_details,
    )


def _check_output(item: tuple[int, RequestOutput]) -> None:
    for completion in item[1].outputs:
        if completion.finish_reason is not None:
            raise_failure(completion)
