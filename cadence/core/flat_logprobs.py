"""Logprobs of a whole output in a handful of lists: `SamplingParams(flat_logprobs=True)`.

To read it is as good as a list of one dict per position; to keep it costs a fixed number of objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from cadence.core.outputs import Logprob, PositionLogprobs


@dataclass(slots=True)
class FlatLogprobs(Sequence[PositionLogprobs]):
    """Position i has the entries [start_indices[i], end_indices[i]) of the other lists. One without entries is a
    prompt's first token, which nothing came before."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, position: PositionLogprobs | None) -> None:
        self.start_indices.append(len(self.token_ids))
        for token_id, entry in (position or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[PositionLogprobs | None]) -> None:
        for position in positions:
            self.append(position)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> PositionLogprobs | FlatLogprobs:
        if isinstance(index, slice):
            part = FlatLogprobs()
            part.extend(self[number] for number in range(*index.indices(len(self))))
            return part
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in range(self.start_indices[index], self.end_indices[index])
        }

    def __iter__(self) -> Iterator[PositionLogprobs]:
        return (self[number] for number in range(len(self)))
