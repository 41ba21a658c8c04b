"""From arrays of logprobs to the dicts users know."""

from __future__ import annotations

from cadence.core.contract.step import FloatArray, IntArray, PromptLogprobs, TokenLogprobs
from cadence.core.outputs import Logprob, PositionLogprobs
from cadence.text.null_tokenizer import AnyTokenizer


class LogprobNames:
    """Decoded text of single tokens, cached: the same few thousand tokens recur."""

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str | None] = {}

    def __getitem__(self, token_id: int) -> str | None:
        if token_id not in self._texts:
            self._texts[token_id] = self._tokenizer.token_text(token_id)
        return self._texts[token_id]


def position_logprobs(entry: TokenLogprobs, names: LogprobNames, given: bool = False) -> PositionLogprobs:
    """`given`: the other tokens were named by the request, and have no ranks."""
    if given:
        ids, values = entry.token_ids_np.tolist(), entry.logprobs_np.tolist()
        others = {token_id: Logprob(value, None, names[token_id]) for token_id, value in zip(ids, values, strict=True)}
        return {**others, ids[0]: Logprob(values[0], entry.rank, names[ids[0]])}
    return _position(entry.token_ids_np, entry.logprobs_np, entry.rank, names)


def prompt_position_logprobs(chunk: PromptLogprobs, names: LogprobNames) -> list[PositionLogprobs]:
    return [
        _position(chunk.token_ids_np[i], chunk.logprobs_np[i], int(rank), names)
        for i, rank in enumerate(chunk.ranks_np)
    ]


def _position(token_ids_np: IntArray, logprobs_np: FloatArray, rank: int, names: LogprobNames) -> PositionLogprobs:
    """Column 0 is the token that stands there; the others follow in falling order, ranks 1, 2, 3, …"""
    position: PositionLogprobs = {}
    for index, (token_id, logprob) in enumerate(zip(token_ids_np.tolist(), logprobs_np.tolist(), strict=True)):
        position.setdefault(token_id, Logprob(logprob, rank if index == 0 else index, names[token_id]))
    return position
