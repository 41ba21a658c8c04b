"""Logits processors written by the user: Python callables, for the whole engine or for one request."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.sampling_params import LogitsProcessor
from cadence.core.step import NewRow
from cadence.sample.context import SampleContext


@dataclass(frozen=True, slots=True)
class Processor:
    """f(output_token_ids, logits) or f(prompt_token_ids, output_token_ids, logits), returning logits [V]."""

    function: LogitsProcessor
    takes_prompt: bool

    def __call__(self, prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        result = self.function(prompt, output, logits) if self.takes_prompt else self.function(output, logits)
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"returned {type(result).__name__}, not a tensor")
        if result.shape != logits.shape:
            raise ValueError(f"returned logits of shape {list(result.shape)}, not {list(logits.shape)}")
        return result

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


class CustomProcessors:
    """A `RequestTable` and a `LogitsStep`. Waits for the device: the callables read tokens on the host."""

    def __init__(self, num_rows: int, for_all: Sequence[LogitsProcessor]) -> None:
        self._for_all = tuple(map(_processor, for_all))
        self._by_row: dict[int, tuple[Processor, ...]] = {}
        self._used_np = np.zeros(num_rows, dtype=np.bool_)

    def add(self, row: int, request: NewRow) -> None:
        own = request.sampling.logits_processors or ()
        self._by_row[row] = self._for_all + tuple(map(_processor, own))
        self._used_np[row] = bool(self._by_row[row])

    def remove(self, row: int) -> None:
        self._by_row.pop(row, None)
        self._used_np[row] = False

    def flush(self) -> None:
        """Everything lies on the host."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lengths, prompt_lens = ctx.lengths.tolist(), ctx.prompt_lens.tolist()
        for line, row in enumerate(ctx.rows_np.tolist()):
            processors = self._by_row.get(row, ())
            if processors:
                tokens = ctx.tokens[row, : lengths[line]].tolist()
                prompt, output = tokens[: prompt_lens[line]], tokens[prompt_lens[line] :]
                error = _process(processors, logits[line], prompt, output)
                if error:
                    ctx.errors[row] = error
        return logits


def _process(processors: tuple[Processor, ...], logits: torch.Tensor, prompt: list[int], output: list[int]) -> str:
    """Runs the processors on one line [V], in place -> what went wrong, "" if nothing did."""
    for processor in processors:
        try:
            logits.copy_(processor(prompt, output, logits.clone()))
        except Exception as error:  # whatever the user's code raises is the fault of this row alone
            return f"logits processor {processor.name}: {type(error).__name__}: {error}"
    return ""


def _processor(function: LogitsProcessor) -> Processor:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin that does not tell
        return Processor(function, takes_prompt=False)
    return Processor(function, takes_prompt=len(parameters) == 3)
