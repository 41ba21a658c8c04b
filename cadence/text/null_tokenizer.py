"""No tokenizer (`skip_tokenizer_init`): token ids in, token ids out. What would need text is refused."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.errors import InvalidRequestError
from cadence.text.detokenizer import NullDetokenizer
from cadence.text.tokenizer import Tokenizer


def no_tokenizer() -> InvalidRequestError:
    return InvalidRequestError("there is no tokenizer: skip_tokenizer_init is set", "skip_tokenizer_init")


def not_text() -> InvalidRequestError:
    return InvalidRequestError("skip_tokenizer_init is set: give prompt_token_ids, not text", "prompt")


class NullTokenizer:
    """The part of `Tokenizer` that an engine uses."""

    vocab_size = 0
    eos_token_ids: frozenset[int] = frozenset()

    def loaded(self) -> Tokenizer:
        raise no_tokenizer()

    def require(self, what: str, field: str) -> None:
        raise InvalidRequestError(f"{what} need a tokenizer: skip_tokenizer_init is set", field)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise not_text()

    def single_token(self, text: str) -> int | None:
        return None

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = True) -> str:
        return ""

    def token_text(self, token_id: int) -> str | None:
        return None

    def detokenizer(
        self, prompt_token_ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> NullDetokenizer:
        return NullDetokenizer()


AnyTokenizer = Tokenizer | NullTokenizer
