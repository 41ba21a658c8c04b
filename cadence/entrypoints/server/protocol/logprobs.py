"""Logprobs in the two shapes clients know: completions' four parallel lists, and chat's list of objects."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from cadence.core.outputs import Logprob, PositionLogprobs
from cadence.text.tokenizer import Tokenizer

LOWEST = -9999.0  # what stands for minus infinity, which JSON cannot say


class TokenNames:
    """How single tokens are written down."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._pieces = tokenizer.pieces
        self._as_ids = as_ids

    def piece(self, token_id: int) -> bytes:
        """What the token adds to the text: maybe only a part of a character."""
        if self._pieces.additive:
            return self._pieces.keeping.inner[token_id]
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self.piece(token_id).decode("utf-8", "replace")

    def is_silent(self, token_id: int) -> bool:
        """Whether decoded text leaves the token out when special tokens are skipped."""
        return token_id in self._tokenizer.skipped_ids


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], positions: Sequence[PositionLogprobs], top: int
) -> dict[str, Any]:
    """`top` tokens each, the chosen one first and then the likeliest; -1 = all there are."""
    content = [
        {
            **token_logprob(names, token_id, position[token_id].logprob),
            "top_logprobs": [token_logprob(names, other, entry.logprob) for other, entry in _first(position, top)],
        }
        for token_id, position in zip(token_ids, positions, strict=True)
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """One choice's, piece by piece: `text_offset` goes on where the last piece ended.

    skip_special: special tokens are not in the text.
    """

    def __init__(self, names: TokenNames, skip_special: bool, start: int = 0) -> None:
        self._names = names
        self._skip_special = skip_special
        self._offset = start  # characters of the choice's text before the next token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(
        self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], top: int, num_shown: int = 0
    ) -> dict[str, Any]:
        """`top` likeliest tokens each and the chosen one; -1 = all there are. A position is None for the first token of
        a prompt, which nothing came before. The first `num_shown` tokens are in the text even if they are special."""
        tokens, chosen, others, offsets = [], [], [], []
        for number, (token_id, position) in enumerate(zip(token_ids, positions, strict=True)):
            tokens.append(self._names.name(token_id))
            chosen.append(None if position is None else _finite(position[token_id].logprob))
            others.append(None if position is None else self._named(position, top))
            offsets.append(self._offset)
            if number < num_shown or not (self._skip_special and self._names.is_silent(token_id)):
                self._offset += len(self._decoder.decode(self._names.piece(token_id)))
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": others, "text_offset": offsets}

    def _named(self, position: PositionLogprobs, top: int) -> dict[str, float]:
        """By name; where two tokens are written alike the chosen one stays, or the likelier. The chosen token is always
        there, and first."""
        named: dict[str, float] = {}
        for other, entry in _first(position, top if top < 0 else top + 1):
            named.setdefault(self._names.name(other), _finite(entry.logprob))
        return named


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    if positions is None:
        return None
    return [None if position is None else _by_id(position) for position in positions]


def _by_id(position: PositionLogprobs) -> dict[str, Any]:
    return {
        str(token_id): {"logprob": _finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
        for token_id, entry in position.items()
    }


def _first(position: PositionLogprobs, count: int) -> list[tuple[int, Logprob]]:
    """In the order of the position: its own token, then the likeliest, or those that were asked for by id."""
    return list(position.items())[: None if count < 0 else count]


def token_logprob(names: TokenNames, token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": names.name(token_id), "logprob": _finite(logprob), "bytes": list(names.piece(token_id))}


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST
