"""Logits processors written by the user: Python callables, for the whole engine or for one request.

Host processors see one line at a time and its tokens as lists: f(output_token_ids, logits) or
f(prompt_token_ids, output_token_ids, logits), returning logits [V]. The device waits for them. They may remember what
they saw, so they see what has become of a request and never a draft: no drafts are proposed for their rows.

Device processors carry the attribute `on_device = True` and see all lines that use them at once, as tensors:
f(tokens, lengths, prompt_lens, logits), returning logits [n, V]. Line i has the tokens tokens[i, :lengths[i]], of which
the first prompt_lens[i] are its prompt. They must not read tensors on the host; then nothing waits.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.core.failure import Failure, FailureCode
from cadence.core.sampling_params import LogitsProcessor, is_on_device
from cadence.device.base import Device
from cadence.sample.context import SampleContext
from cadence.sample.lines import LineIndex, LinePicker


@dataclass(frozen=True, slots=True)
class HostProcessor:
    """Any processor, called for one line with lists of tokens."""

    function: LogitsProcessor
    takes_prompt: bool

    def __call__(self, prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        """logits [V]"""
        if is_on_device(self.function):  # beside a host processor of the same row, where the order counts
            tokens = torch.tensor([prompt + output], dtype=torch.int32, device=logits.device)
            lengths, prompt_lens = (torch.tensor([n], device=logits.device) for n in (tokens.shape[1], len(prompt)))
            return _checked(self.function(tokens, lengths, prompt_lens, logits[None]), logits[None])[0]
        result = self.function(prompt, output, logits) if self.takes_prompt else self.function(output, logits)
        return _checked(result, logits)

    @property
    def name(self) -> str:
        return _name(self.function)


class HostProcessors:
    """A `RequestTable` and a `LogitsStep` for rows that have at least one host processor."""

    def __init__(self, num_rows: int, for_all: Sequence[LogitsProcessor]) -> None:
        self._for_all = tuple(for_all)
        self._by_row: dict[int, tuple[HostProcessor, ...]] = {}
        self._used_np = np.zeros(num_rows, dtype=np.bool_)

    def add(self, row: int, request: NewRow) -> None:
        functions = self._for_all + tuple(request.sampling.logits_processors or ())
        self._used_np[row] = not all(map(is_on_device, functions))
        if self._used_np[row]:
            self._by_row[row] = tuple(map(_host_processor, functions))

    def remove(self, row: int) -> None:
        self._by_row.pop(row, None)
        self._used_np[row] = False

    def flush(self) -> None:
        """Everything lies on the host."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        lengths, prompt_lens = ctx.lengths.tolist(), ctx.prompt_lens.tolist()
        first_np = np.diff(ctx.rows_np, prepend=-1) != 0  # lines of a row after its first are padding
        for line in np.flatnonzero(self._used_np[ctx.rows_np] & first_np).tolist():
            row = int(ctx.rows_np[line])
            tokens = ctx.tokens[row, : lengths[line]].tolist()
            prompt, output = tokens[: prompt_lens[line]], tokens[prompt_lens[line] :]
            error = _process(self._by_row[row], logits[line], prompt, output)
            if error:
                ctx.errors[line] = Failure(FailureCode.LOGITS_PROCESSOR, error)
        return logits


class DeviceProcessors:
    """A `RequestTable` and a `LogitsStep` for rows whose processors all run on the device."""

    def __init__(self, device: Device, num_rows: int, for_all: Sequence[LogitsProcessor]) -> None:
        self._device = device
        self._for_all = tuple(for_all)
        self._by_row: dict[int, tuple[LogitsProcessor, ...]] = {}
        self._pickers: dict[int, LinePicker] = {}  # by id of the processor, which _by_row keeps alive
        self._used_np = np.zeros(num_rows, dtype=np.bool_)
        self._max_len_np = np.zeros(num_rows, dtype=np.int64)  # most tokens the row can ever hold

    def add(self, row: int, request: NewRow) -> None:
        functions = self._for_all + tuple(request.sampling.logits_processors or ())
        self._used_np[row] = bool(functions) and all(map(is_on_device, functions))
        self._max_len_np[row] = request.max_len
        if self._used_np[row]:
            self._by_row[row] = functions

    def remove(self, row: int) -> None:
        self._used_np[row] = False
        if self._by_row.pop(row, ()):
            kept = {id(function) for functions in self._by_row.values() for function in functions}
            self._pickers = {key: picker for key, picker in self._pickers.items() if key in kept}

    def flush(self) -> None:
        """Everything lies on the host."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._used_np[rows_np].any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        for function, lines_np in self._users(ctx.rows_np):
            picker = self._pickers.setdefault(id(function), LinePicker(self._device))
            logits = self._apply_one(function, picker, lines_np, logits, ctx)
        return logits

    def _users(self, rows_np: np.ndarray) -> list[tuple[LogitsProcessor, np.ndarray]]:
        """(processor, which lines use it [S] bool), in the order in which rows list them."""
        found: dict[int, tuple[LogitsProcessor, np.ndarray]] = {}
        for line in np.flatnonzero(self._used_np[rows_np]).tolist():
            for function in self._by_row[int(rows_np[line])]:
                _, lines_np = found.setdefault(id(function), (function, np.zeros(len(rows_np), dtype=np.bool_)))
                lines_np[line] = True
        return list(found.values())

    def _apply_one(
        self,
        function: LogitsProcessor,
        picker: LinePicker,
        lines_np: np.ndarray,
        logits: torch.Tensor,
        ctx: SampleContext,
    ) -> torch.Tensor:
        width = min(int(self._max_len_np[ctx.rows_np[lines_np]].max()), ctx.tokens.shape[1])

        def change(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
            tokens = ctx.tokens[:, :width].index_select(0, ctx.rows[lines])
            return _checked(function(tokens, ctx.lengths[lines], ctx.prompt_lens[lines], part.clone()), part)

        try:
            return picker.change(logits, lines_np, change)
        except Exception as error:  # whatever the user's code raises is the fault of the lines at which it does
            if lines_np.sum() > 1:
                return self._apply_each(function, picker, lines_np, logits, ctx)
            message = f"logits processor {_name(function)}: {type(error).__name__}: {error}"
            failure = Failure(FailureCode.LOGITS_PROCESSOR, message)
            ctx.errors.update(dict.fromkeys(np.flatnonzero(lines_np).tolist(), failure))
            return logits

    def _apply_each(
        self,
        function: LogitsProcessor,
        picker: LinePicker,
        lines_np: np.ndarray,
        logits: torch.Tensor,
        ctx: SampleContext,
    ) -> torch.Tensor:
        """Line by line: no request fails with another, and none before it comes to a line after a draft."""
        for line in np.flatnonzero(lines_np).tolist():
            only_np = np.zeros_like(lines_np)
            only_np[line] = True
            logits = self._apply_one(function, picker, only_np, logits, ctx)
        return logits


def _process(processors: tuple[HostProcessor, ...], logits: torch.Tensor, prompt: list[int], output: list[int]) -> str:
    """Runs the processors on one line [V], in place -> what went wrong, "" if nothing did."""
    for processor in processors:
        try:
            logits.copy_(processor(prompt, output, logits.clone()))
        except Exception as error:  # whatever the user's code raises is the fault of this row alone
            return f"logits processor {processor.name}: {type(error).__name__}: {error}"
    return ""


def _checked(result: object, logits: torch.Tensor) -> torch.Tensor:
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"returned {type(result).__name__}, not a tensor")
    if result.shape != logits.shape:
        raise ValueError(f"returned logits of shape {list(result.shape)}, not {list(logits.shape)}")
    return result


def _name(function: LogitsProcessor) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _host_processor(function: LogitsProcessor) -> HostProcessor:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin that does not tell
        return HostProcessor(function, takes_prompt=False)
    return HostProcessor(function, takes_prompt=len(parameters) == 3)
