"""The text service of an engine without a tokenizer: what would need text is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cadence.config.engine_config import TokenizerConfig
from cadence.text.null_tokenizer import AnyTokenizer, no_tokenizer, not_text
from cadence.text.service.text_service import TextService, TextTokens

T = TypeVar("T")


class NullTextService:
    def loaded(self) -> TextService:
        raise no_tokenizer()

    async def encode(self, text: str) -> TextTokens:
        raise not_text()

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        return work()

    async def close(self) -> None: ...


def open_text_service(
    tokenizer: AnyTokenizer, config: TokenizerConfig, max_model_len: int
) -> TextService | NullTextService:
    return NullTextService() if config.skip else TextService(tokenizer.loaded(), config, max_model_len)
