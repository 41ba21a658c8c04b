"""Text to token ids and back, as the model's prompts would be."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.openai.state import ServerState, State
from cadence.text.chat_template import ChatRequest
from cadence.text.text_service import Encoding
from cadence.text.tokenizer import Tokenizer

router = APIRouter(tags=["tokenizer"])

TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class TokenizeRequest(BaseModel):
    """Either `prompt`, or `messages` with what a chat may have beside them."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None  # True for a prompt; False for messages, whose template writes them
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(BaseModel):
    prompt: str


@router.post("/tokenize")
async def tokenize(request: TokenizeRequest, state: State) -> TokenizeResponse:
    state.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequestError("give either prompt or messages", "prompt")
    tokenizer = state.llm.tokenizer
    tokens = await _encode(request, state)
    texts = await asyncio.to_thread(_texts, tokenizer, tokens) if request.return_token_strs else None
    max_model_len = state.llm.config.model.max_model_len
    return TokenizeResponse(count=len(tokens), max_model_len=max_model_len, tokens=tokens, token_strs=texts)


@router.post("/detokenize")
async def detokenize(request: DetokenizeRequest, state: State) -> DetokenizeResponse:
    state.check_model(request.model)
    return DetokenizeResponse(prompt=await state.llm.texts.decode(request.tokens, skip_special_tokens=False))


async def _encode(request: TokenizeRequest, state: ServerState) -> list[int]:
    if request.prompt is not None:
        how = Encoding(add_special_tokens=request.add_special_tokens is not False)
        return (await state.llm.texts.encode(request.prompt, how)).ids
    if request.chat_template and not state.options.trust_request_chat_template:
        message = "chat templates in requests are refused; the server allows them with --trust-request-chat-template"
        raise InvalidRequestError(message, "chat_template")
    chat = ChatRequest(
        messages=request.messages or [],
        tools=request.tools,
        add_generation_prompt=request.add_generation_prompt and not request.continue_final_message,
        continue_final_message=request.continue_final_message,
        content_format=state.options.chat_template_content_format,
        kwargs={**state.options.default_chat_template_kwargs, **(request.chat_template_kwargs or {})},
    )
    how = Encoding(add_special_tokens=bool(request.add_special_tokens), field="messages")
    template = request.chat_template or state.chat_template
    return (await state.llm.texts.chat(chat, how, template, trusted=not request.chat_template)).ids


def _texts(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    return [tokenizer.backend.id_to_token(token) or "" for token in tokens]
