"""Prompts cut to a number of tokens, where a request asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError
from cadence.text.service.text_jobs import ALL, Kept


@dataclass(frozen=True, slots=True)
class Truncation:
    limit: int | None = None  # tokens to keep; None = all, -1 = as many as leave room for the output
    side: str | None = None  # where tokens are cut off: left (also None) or right

    def __post_init__(self) -> None:
        if self.limit == 0:
            raise InvalidRequestError("truncate_prompt_tokens must be -1 or at least 1", "truncate_prompt_tokens")

    def kept(self, max_model_len: int, max_tokens: int | None) -> Kept:
        """`max_tokens` is what the output may take; None = anything above nothing."""
        limit = self.limit
        if limit is None:
            return ALL
        if limit < 0:
            limit = max(1, max_model_len - max(1, max_tokens or 1))
        return (None, limit) if self.side == "right" else (-limit, None)


NO_TRUNCATION = Truncation()
