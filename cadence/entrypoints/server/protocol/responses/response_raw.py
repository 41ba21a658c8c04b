"""What the model read and wrote, tags and special tokens included, for clients that ask to see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cadence.entrypoints.server.chat.events import ChatEvent, PromptRead, ReasoningDelta, TextDelta, ToolCallDelta
from cadence.text.tokenizer import Tokenizer


class RawMessages:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prompt: dict[str, Any] | None = None
        self._token_ids: list[int] = []  # written so far

    def read(self, event: ChatEvent) -> None:
        if isinstance(event, PromptRead):
            self._prompt = _raw(event.prompt_text, event.prompt_token_ids)
        elif isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
            self._token_ids += event.token_ids

    def fields(self) -> dict[str, Any]:
        """Both lists are null until there is something in them."""
        text = self._tokenizer.decode(self._token_ids, skip_special_tokens=False)
        return {
            "input_messages": [self._prompt] if self._prompt else None,
            "output_messages": [_raw(text, self._token_ids)] if self._token_ids else None,
        }


class NoRawMessages:
    def read(self, event: ChatEvent) -> None:
        pass

    def fields(self) -> dict[str, Any]:
        return {"input_messages": None, "output_messages": None}


def _raw(text: str, token_ids: Sequence[int]) -> dict[str, Any]:
    return {"type": "raw_message_tokens", "message": text, "tokens": list(token_ids)}
