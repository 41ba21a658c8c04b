"""A conversation as the tokens that the model's chat template makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.routes.state import ServerState
from cadence.text.chat_template import ChatRequest
from cadence.text.service.text_service import Encoding


class ConversationFields(Protocol):
    """What a body says of one."""

    messages: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None


async def conversation_tokens(
    asked: ConversationFields, tools: Sequence[Mapping[str, Any]] | None, how: Encoding, state: ServerState
) -> list[int]:
    check_template_allowed(asked.chat_template, state)
    chat = ChatRequest(
        messages=asked.messages or [],
        tools=tools,
        add_generation_prompt=asked.add_generation_prompt and not asked.continue_final_message,
        continue_final_message=asked.continue_final_message,
        content_format=state.options.chat_template_content_format,
        kwargs={**state.options.default_chat_template_kwargs, **(asked.chat_template_kwargs or {})},
    )
    template = asked.chat_template or state.chat_template
    return (await state.llm.texts.chat(chat, how, template, trusted=not asked.chat_template)).ids


def check_template_allowed(template: str | None, state: ServerState) -> None:
    """template: that a request brings"""
    if template and not state.options.trust_request_chat_template:
        message = "chat templates in requests are refused; the server allows them with --trust-request-chat-template"
        raise InvalidRequestError(message, "chat_template")
