"""From a conversation to a prompt's text and token ids, in two steps: what a template writes, and its tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tokenizers import Tokenizer as Backend

from cadence.core.errors import ConfigError, TemplateError
from cadence.text.chat_template import ChatRequest, ChatTemplates
from cadence.text.control_codes import ControlCodes
from cadence.text.mistral_chats import MistralChats
from cadence.text.special_tokens import SpecialTokens
from cadence.text.tokenizer import Tokenizer, encode_with

_PROBES = (
    ["user"],
    ["system", "user", "assistant", "user"],
    ["user", "assistant", "tool"],
)


class Chats(Protocol):
    def render(self, chat: ChatRequest, template: str) -> str:
        """What the template writes, for `text` and `encode`. "" = the model's own template."""

    def text(self, rendered: str) -> str:
        """The prompt as people read it."""

    def encode(self, rendered: str, add_special_tokens: bool) -> list[int]: ...

    def check_template(self, template: str) -> None:
        """Raises ConfigError where the template cannot be used."""


class PlainChats:
    """A control token that a message spells out becomes that token, as `transformers` does by default."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, chat: ChatRequest, template: str) -> str:
        return self._tokenizer.render_chat(chat, template)

    def text(self, rendered: str) -> str:
        return rendered

    def encode(self, rendered: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(rendered, add_special_tokens)

    def check_template(self, template: str) -> None:
        pass


class EscapedChats:
    """Control tokens come from the template alone; in messages their spelling is text like any other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        control = {tokenizer.added_token_ids[token_id] for token_id in tokenizer.skipped_ids}
        self._tokenizer = tokenizer
        self._codes = ControlCodes(control)
        self._twin: Backend = self._codes.twin(tokenizer.backend)
        self._templates = ChatTemplates(hide=self._codes.hide)
        self._special = _hidden(tokenizer.special, self._codes)

    def render(self, chat: ChatRequest, template: str) -> str:
        for value, where in ((chat.messages, "messages"), (chat.tools, "tools"), (chat.kwargs, "chat_template_kwargs")):
            self._codes.check(value, where)
        source = self._tokenizer.pick_template(template, bool(chat.tools))
        return self._codes.settle(self._templates.render(source, chat, self._special))

    def text(self, rendered: str) -> str:
        return self._codes.show(rendered)

    def encode(self, rendered: str, add_special_tokens: bool) -> list[int]:
        return encode_with(self._twin, rendered, add_special_tokens)

    def check_template(self, template: str) -> None:
        """A template may put control tokens together in ways that cannot be followed: that is said at the start."""
        plain = PlainChats(self._tokenizer)
        for roles in _PROBES:
            chat = ChatRequest([{"role": role, "content": "hello"} for role in roles])
            try:
                expected = plain.encode(plain.render(chat, template), False)
                found = self.encode(self.render(chat, template), False)
            except TemplateError:
                continue  # not every template takes every order of roles, and some models have none
            if found != expected:
                raise ConfigError(
                    "escape_control_tokens: the chat template puts control tokens together from parts, "
                    "which cannot be told apart from text",
                    "escape_control_tokens",
                )


def chats_for(tokenizer: Tokenizer, escape_control_tokens: bool) -> Chats:
    plain = _by_template(tokenizer, escape_control_tokens)
    return plain if tokenizer.mistral_file is None else MistralChats(tokenizer, tokenizer.mistral_file, plain)


def _by_template(tokenizer: Tokenizer, escape_control_tokens: bool) -> PlainChats | EscapedChats:
    return EscapedChats(tokenizer) if escape_control_tokens else PlainChats(tokenizer)


def _hidden(special: SpecialTokens, codes: ControlCodes) -> SpecialTokens:
    named = {name: codes.hide(token) for name, token in special.named().items()}
    return replace(special, **named)  # type: ignore[arg-type]
