"""Chats as Mistral's own package writes them: of models whose tokenizer comes without a chat template."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from cadence.core.errors import TemplateError
from cadence.core.shown import cut
from cadence.text.chat_template import ChatRequest
from cadence.text.tokenizer import Tokenizer

_MISSING = (
    "chats of this model are written by the package mistral_common (pip install mistral-common), which is not "
    "installed; or give a template with --chat-template (in Python: chat_template=...)"
)


class _ByTemplate(Protocol):
    def render(self, chat: ChatRequest, template: str) -> str: ...
    def text(self, rendered: str) -> str: ...
    def encode(self, rendered: str, add_special_tokens: bool) -> list[int]: ...
    def check_template(self, template: str) -> None: ...


class MistralChats:
    """What is rendered are token ids, after a mark. Control tokens that a message spells out are text."""

    _MARK = "\x00tokens "

    def __init__(self, tokenizer: Tokenizer, file: Path, by_template: _ByTemplate) -> None:
        self._tokenizer, self._file, self._by_template = tokenizer, file, by_template
        self._package: Any = None  # opened when the first chat comes

    def render(self, chat: ChatRequest, template: str) -> str:
        if template:
            return self._by_template.render(chat, template)
        writes, request = self._opened()
        try:
            asked = request.from_openai(
                messages=[dict(message) for message in chat.messages],
                tools=[dict(tool) for tool in chat.tools] if chat.tools else None,
                continue_final_message=chat.continue_final_message,
            )
            ids = writes.encode_chat_completion(asked).tokens
        except Exception as error:  # the package has many of its own, and pydantic's
            raise TemplateError(f"mistral_common does not write this chat: {cut(str(error))}", "messages") from None
        return self._MARK + " ".join(map(str, ids))

    def text(self, rendered: str) -> str:
        ids = self._ids(rendered)
        if ids is None:
            return self._by_template.text(rendered)
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def encode(self, rendered: str, add_special_tokens: bool) -> list[int]:
        ids = self._ids(rendered)
        return self._by_template.encode(rendered, add_special_tokens) if ids is None else ids

    def check_template(self, template: str) -> None:
        if template:
            self._by_template.check_template(template)

    def _ids(self, rendered: str) -> list[int] | None:
        """None of what a template wrote."""
        if not rendered.startswith(self._MARK):
            return None
        return [int(number) for number in rendered.removeprefix(self._MARK).split()]

    def _opened(self) -> tuple[Any, Any]:
        if self._package is None:
            try:
                request = import_module("mistral_common.protocol.instruct.request").ChatCompletionRequest
                opens = import_module("mistral_common.tokens.tokenizers.mistral").MistralTokenizer
            except ImportError:
                raise TemplateError(_MISSING, "chat_template") from None
            try:
                self._package = opens.from_file(str(self._file)), request
            except Exception as error:
                raise TemplateError(
                    f"{self._file}: mistral_common cannot read it: {cut(str(error))}", "messages"
                ) from None
        found: tuple[Any, Any] = self._package
        return found
