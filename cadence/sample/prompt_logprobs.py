"""Logprobs of prompt tokens, taken from the hidden states of the step that computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import NewRow, PromptLogprobs
from cadence.device.base import Device
from cadence.sample.logprobs import NONE, Scores, columns, split_mode
from cadence.sample.prompt_slice import PromptSlice

_MAX_POSITIONS = 256  # positions whose logits exist at once, ...
_LOGITS_BYTES = {"cpu": 1 << 24, "cuda": 1 << 27}  # ... within so many bytes in float32

LogitsFn = Callable[[torch.Tensor], torch.Tensor]  # tokens [n] int64 of a step -> logits [n, V] float32 after each


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one row in this step."""

    row: int
    first: int  # position whose hidden state comes first; it speaks of token first + 1
    hidden: int  # where that hidden state lies
    length: int
    columns: int  # most likely tokens to return per position


@dataclass(frozen=True, slots=True)
class SpanScores:
    spans: list[Span]
    scores: Scores  # positions of all spans, in order

    def unpack(self, ids_np: np.ndarray, values_np: np.ndarray, ranks_np: np.ndarray) -> dict[int, PromptLogprobs]:
        result, start = {}, 0
        for span in self.spans:
            lines, wanted = slice(start, start + span.length), slice(1 + span.columns)
            result[span.row] = PromptLogprobs(
                start=span.first + 1,
                token_ids_np=ids_np[lines, wanted],
                logprobs_np=values_np[lines, wanted],
                ranks_np=ranks_np[lines],
            )
            start += span.length
        return result


@dataclass(frozen=True, slots=True)
class PendingPromptLogprobs:
    """Results on the device; `unpack` takes what `tensors` named, downloaded, in the same order."""

    parts: Sequence[SpanScores]

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for part in self.parts for tensor in part.scores.tensors()]

    def unpack(self, arrays: Sequence[np.ndarray]) -> dict[int, PromptLogprobs]:
        result: dict[int, PromptLogprobs] = {}
        for i, part in enumerate(self.parts):
            result.update(part.unpack(*arrays[3 * i : 3 * i + 3]))
        return result


class PromptLogprobsTable:
    """A `RequestTable`. A row is active until the last of its prompt was seen; a resumed row begins again."""

    def __init__(self, device: Device, num_rows: int, vocab_size: int, mode: str) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._at_once = min(max(_LOGITS_BYTES[device.caps.kind] // (4 * vocab_size), 1), _MAX_POSITIONS)
        _, self._as_logits = split_mode(mode)  # nothing is applied to prompts: raw and processed are the same
        self._counts_np = np.full(num_rows, NONE, dtype=np.int64)
        self._prompt_len_np = np.zeros(num_rows, dtype=np.int64)

    def add(self, row: int, request: NewRow) -> None:
        wanted = request.sampling.prompt_logprobs
        self._counts_np[row] = NONE if wanted is None else wanted
        self._prompt_len_np[row] = request.prompt_len

    def remove(self, row: int) -> None:
        self._counts_np[row] = NONE

    def flush(self) -> None:
        """Everything lies on the host."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool((self._counts_np[rows_np] != NONE).any())

    def collect(
        self, hidden: torch.Tensor, step: PromptSlice, ctx: object, logits_fn: LogitsFn
    ) -> PendingPromptLogprobs:
        """hidden [T, H] of the step. Position p speaks of prompt token p + 1."""
        spans = self._spans(step)
        parts = []
        for whole_vocab in (False, True):  # apart, so that one wide row does not widen the others
            group = [span for span in spans if (span.columns == self._vocab_size) == whole_vocab]
            if group:
                parts.append(SpanScores(group, self._score(group, hidden, step.tokens, logits_fn)))
        if parts and not self._device.queues_work:  # a GPU keeps freed memory for all, and would have to wait
            self._device.trim_memory()
        return PendingPromptLogprobs(parts)

    def pass_over(self, step: PromptSlice) -> None:
        """Another stage collects what this step has."""
        self._spans(step)

    def _spans(self, step: PromptSlice) -> list[Span]:
        spans = []
        for r in np.flatnonzero(self._counts_np[step.rows_np] != NONE).tolist():
            row, first, hidden = int(step.rows_np[r]), int(step.num_computed_np[r]), int(step.query_start_np[r])
            last = int(self._prompt_len_np[row]) - 1  # the hidden state of the last prompt token speaks of the output
            end = first + int(step.query_start_np[r + 1]) - hidden
            if first < last:
                wanted = int(columns(self._counts_np[row], self._vocab_size))
                spans.append(Span(row, first, hidden, min(end, last) - first, wanted))
            if end >= last:
                self._counts_np[row] = NONE
        return spans

    def _score(self, spans: list[Span], hidden: torch.Tensor, tokens: torch.Tensor, logits_fn: LogitsFn) -> Scores:
        index_np = np.concatenate([_index(span) for span in spans], axis=1)
        k = max(span.columns for span in spans)
        scores, start = Scores.empty(index_np.shape[1], k, hidden.device), 0
        for index in torch.split(self._device.upload(index_np), self._at_once, dim=1):
            lines, rows, positions = index.unbind(0)
            own, end = tokens[rows, positions].to(torch.int64), start + len(rows)
            scores.lines(slice(start, end)).fill(logits_fn(lines).float(), own, self._as_logits)
            start = end
        return scores


def _index(span: Span) -> np.ndarray:
    """[3, length] int64: line of the hidden states, row, and position of the token spoken of."""
    steps_np = np.arange(span.length, dtype=np.int64)
    return np.stack([span.hidden + steps_np, np.full_like(steps_np, span.row), span.first + 1 + steps_np])
