"""Logprobs of sampled tokens, for the rows that ask: the k most likely first, then their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import NewRow, TokenLogprobs
from cadence.core.errors import ConfigError
from cadence.device.base import Device
from cadence.sample.context import SampleContext
from cadence.sample.lines import LineIndex, LinePicker, line_pieces
from cadence.sample.top_tokens import top_tokens

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
NONE = -2  # the count of a row that wants no logprobs; -1 = the whole vocabulary


@dataclass(frozen=True, slots=True)
class Scores:
    """n positions with their own token in column 0 and the k most likely ones after it."""

    token_ids: torch.Tensor  # [n, 1 + k] int32
    values: torch.Tensor  # [n, 1 + k] float32
    ranks: torch.Tensor  # [n] int32

    @classmethod
    def empty(cls, count: int, k: int, device: torch.device) -> Scores:
        return cls(
            torch.empty((count, 1 + k), dtype=torch.int32, device=device),
            torch.empty((count, 1 + k), dtype=torch.float32, device=device),
            torch.empty(count, dtype=torch.int32, device=device),
        )

    def tensors(self) -> list[torch.Tensor]:
        return [self.token_ids, self.values, self.ranks]

    def lines(self, piece: slice) -> Scores:
        """Views of some positions."""
        return Scores(self.token_ids[piece], self.values[piece], self.ranks[piece])

    def fill(
        self, logits: torch.Tensor, tokens: torch.Tensor, as_logits: bool, given: torch.Tensor | None = None
    ) -> Scores:
        """logits [n, V], tokens [n] int64 -> itself. Each line by itself: softmax and selection never look across
        lines, of which a bounded number are worked on at once. `given` [n, k] int64 takes the place of the k most
        likely tokens."""
        for piece in line_pieces(logits):
            others = top_tokens(logits[piece], self.token_ids.shape[1] - 1) if given is None else given[piece]
            self.lines(piece)._fill_piece(logits[piece], tokens[piece], others, as_logits)
        return self

    def _fill_piece(self, logits: torch.Tensor, tokens: torch.Tensor, others: torch.Tensor, as_logits: bool) -> None:
        own = logits.gather(1, tokens[:, None])
        ids = torch.cat([tokens[:, None], others], dim=1)
        self.token_ids.copy_(ids)
        self.values.copy_((logits if as_logits else logits.log_softmax(dim=-1)).gather(1, ids))
        self.ranks.copy_((logits > own).sum(dim=-1, dtype=torch.int32) + 1)


@dataclass(frozen=True, slots=True)
class LogprobsGroup:
    """Lines scored together: those with a small k, those that want the whole vocabulary, those that name tokens."""

    lines_np: np.ndarray  # [n]
    counts_np: np.ndarray  # [n] columns each line's row asked for, its own token not counted
    lines: LineIndex
    logits: torch.Tensor  # [n, V], a copy: the steps write into the original
    given: torch.Tensor | None = None  # [n, k] int64: the tokens each line's row names, padded with token 0

    def score(self, tokens: torch.Tensor, as_logits: bool) -> ScoredGroup:
        """tokens [S], one per line of the step."""
        k = int(self.counts_np.max())
        own = tokens[self.lines].to(torch.int64)
        scores = Scores.empty(len(own), k, own.device).fill(self.logits, own, as_logits, self.given)
        return ScoredGroup(self.lines_np, self.counts_np, scores)


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    lines_np: np.ndarray  # [n]
    counts_np: np.ndarray  # [n]
    scores: Scores

    def unpack(self, ids_np: np.ndarray, values_np: np.ndarray, ranks_np: np.ndarray) -> dict[int, TokenLogprobs]:
        """-> by line"""
        return {
            line: TokenLogprobs(ids_np[i, : 1 + count], values_np[i, : 1 + count], int(ranks_np[i]))
            for i, (line, count) in enumerate(zip(self.lines_np.tolist(), self.counts_np.tolist(), strict=True))
        }


class LogprobsTable:
    """A `RequestTable` of how many logprobs each row wants."""

    def __init__(self, device: Device, num_rows: int, vocab_size: int, mode: str) -> None:
        self.raw, self.as_logits = split_mode(mode)
        self._vocab_size = vocab_size
        self._counts_np = np.full(num_rows, NONE, dtype=np.int64)
        self._some, self._all = LinePicker(device), LinePicker(device)
        self._given = GivenTokens(device, num_rows)

    def add(self, row: int, request: NewRow) -> None:
        wanted = request.sampling.logprobs
        self._counts_np[row] = NONE if wanted is None else wanted
        self._given.set(row, request.sampling.logprob_token_ids or [])

    def remove(self, row: int) -> None:
        self._counts_np[row] = NONE
        self._given.set(row, [])

    def flush(self) -> None:
        """Everything lies on the host."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool((self._counts_np[rows_np] != NONE).any())

    def take(self, logits: torch.Tensor, ctx: SampleContext) -> list[LogprobsGroup]:
        """Copies the lines of the rows that ask out of logits [S, V]. Empty where none does."""
        counts_np = self._counts_np[ctx.rows_np]
        given_np = self._given.used_np[ctx.rows_np]
        groups = []
        for picker, mask_np in ((self._some, (counts_np >= 0) & ~given_np), (self._all, counts_np == -1)):
            if mask_np.any():
                lines = picker.pick(mask_np)
                wanted_np = columns(counts_np[mask_np], self._vocab_size)
                groups.append(LogprobsGroup(np.flatnonzero(mask_np), wanted_np, lines, _copied(logits, lines)))
        if given_np.any():
            lines, given = self._given.picker.pick(given_np), self._given.gather(ctx.rows_np[given_np])
            lines_np = np.flatnonzero(given_np)
            groups.append(LogprobsGroup(lines_np, counts_np[given_np], lines, _copied(logits, lines), given))
        return groups


class GivenTokens:
    """The tokens that rows name. What a step needs of them is uploaded when its rows change."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self.used_np = np.zeros(num_rows, dtype=np.bool_)
        self.picker = LinePicker(device)
        self._device = device
        self._by_row: dict[int, list[int]] = {}
        self._rows_np: np.ndarray | None = None  # what _flat was built for; None = rebuild
        self._flat = torch.zeros((0, 0), dtype=torch.int64, device=device.torch_device)

    def set(self, row: int, token_ids: list[int]) -> None:
        if not token_ids and not self.used_np[row]:
            return
        self.used_np[row] = bool(token_ids)
        self._by_row[row] = token_ids  # those of rows without any are never asked for
        self._rows_np = None

    def gather(self, rows_np: np.ndarray) -> torch.Tensor:
        """[n, k] int64 on the device, padded with token 0 to the longest."""
        if self._rows_np is None or not np.array_equal(rows_np, self._rows_np):
            lists = [self._by_row[row] for row in rows_np.tolist()]
            flat_np = np.zeros((len(lists), max(map(len, lists))), dtype=np.int64)
            for line_np, token_ids in zip(flat_np, lists, strict=True):
                line_np[: len(token_ids)] = token_ids
            self._flat = self._device.upload(flat_np)
            self._rows_np = rows_np.copy()
        return self._flat


def _copied(logits: torch.Tensor, lines: LineIndex) -> torch.Tensor:
    return logits.clone() if isinstance(lines, slice) else logits[lines]


def columns(counts_np: np.ndarray, vocab_size: int) -> np.ndarray:
    """Counts as requested, -1 or >= 0 -> number of most likely tokens to return."""
    return np.where(counts_np == -1, vocab_size, np.minimum(counts_np, vocab_size))


def split_mode(mode: str) -> tuple[bool, bool]:
    """(before the steps, logits instead of logprobs)."""
    if mode not in MODES:
        raise ConfigError(f"logprobs_mode must be one of {', '.join(MODES)}; got {mode!r}.", field="logprobs_mode")
    return mode.startswith("raw"), mode.endswith("logits")
