"""Text to token ids and back, as the model's prompts would be."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.requests import Request

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.body import RequestBody, body_schema, parse_body
from cadence.entrypoints.server.protocol.chat import Messages, Tools, check_message
from cadence.entrypoints.server.protocol.common import Variables, check_count
from cadence.entrypoints.server.routes.rendered_chat import conversation_tokens
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.text.service.text_service import Encoding
from cadence.text.tokenizer import Tokenizer
from cadence.text.tokenizer_info import describe_tokenizer

router = APIRouter(tags=["tokenizer"])
info_router = APIRouter(tags=["tokenizer"])  # served where --enable-tokenizer-info-endpoint says so

MAX_TOKENS = 262_144  # of a text to be detokenised, where the model's length is not more


class TokenizeRequest(RequestBody):
    """Either `prompt`, or `messages` with what a chat may have beside them."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # True for a prompt; False for messages, whose template writes them
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = Field(default=None, max_length=262_144)
    chat_template_kwargs: Variables | None = None
    tools: Tools | None = None

    def check(self) -> None:
        """What types alone do not say."""
        if (self.prompt is None) == (self.messages is None):
            sent = "messages" if self.model_fields_set & {"prompt", "messages"} == {"messages"} else "prompt"
            raise InvalidRequestError("give either prompt or messages", sent)
        for number, message in enumerate(self.messages or ()):
            check_message(message, f"messages[{number}]")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            message = "continue_final_message and add_generation_prompt contradict each other"
            raise InvalidRequestError(message, "add_generation_prompt")


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]

    def check(self, vocab_size: int, max_model_len: int) -> None:
        limit = max(MAX_TOKENS, max_model_len)
        check_count(self.tokens, limit, "tokens")
        if not self.tokens or (min(self.tokens) >= 0 and max(self.tokens) < vocab_size):
            return
        number = next(n for n, token in enumerate(self.tokens) if not 0 <= token < vocab_size)
        where = f"tokens[{number}]"
        raise InvalidRequestError(f"{where} must be a token id below the vocabulary size {vocab_size}", where)


class DetokenizeResponse(BaseModel):
    prompt: str


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(connection: Request, state: State) -> TokenizeResponse:
    request = await state.bodies.read(connection, lambda raw: _read_tokenize(raw, connection, state), held=True)
    tokenizer = state.llm.tokenizer
    tokens = await _encode(request, state)
    texts = await asyncio.to_thread(_texts, tokenizer, tokens) if request.return_token_strs else None
    max_model_len = state.llm.config.model.max_model_len
    return TokenizeResponse(count=len(tokens), max_model_len=max_model_len, tokens=tokens, token_strs=texts)


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(connection: Request, state: State) -> DetokenizeResponse:
    request = await state.bodies.read(connection, lambda raw: _read_detokenize(raw, connection, state), held=True)
    return DetokenizeResponse(prompt=await state.llm.texts.decode(request.tokens, skip_special_tokens=False))


@info_router.get("/tokenizer_info")
async def tokenizer_info(state: State) -> JSONResponse:
    """What the tokenizer's config file says, without the names of files, and the chat template."""
    about = (state.llm.config.tokenizer, state.llm.tokenizer, state.chat_template)
    return JSONResponse(await asyncio.to_thread(describe_tokenizer, *about))


def _read_tokenize(raw: bytes, connection: Request, state: ServerState) -> TokenizeRequest:
    request = parse_body(TokenizeRequest, raw, state.ignored.of(connection))
    request.check()
    state.check_model(request.model)
    return request


def _read_detokenize(raw: bytes, connection: Request, state: ServerState) -> DetokenizeRequest:
    request = parse_body(DetokenizeRequest, raw, state.ignored.of(connection))
    request.check(state.llm.vocab_size, state.llm.config.model.max_model_len)
    state.check_model(request.model)
    return request


async def _encode(request: TokenizeRequest, state: ServerState) -> list[int]:
    if request.prompt is not None:
        how = Encoding(add_special_tokens=request.add_special_tokens is not False)
        return (await state.llm.texts.encode(request.prompt, how)).ids
    how = Encoding(add_special_tokens=bool(request.add_special_tokens), field="messages")
    return await conversation_tokens(request, request.tools, how, state)


def _texts(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    return [tokenizer.backend.id_to_token(token) or "" for token in tokens]
