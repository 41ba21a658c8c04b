"""Ops on states, as tests call them: each with tables of its own, on any tokens of one stream per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateOps, StateRuns, StateTable

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class StateCase:
    """An op with its weights. inputs: width of all that it takes of a token, one tensor [T, width]; call(ops, inputs,
    tables, runs) -> [T, ...]"""

    width: int
    tables: Callable[[int, int], Tensors]  # (rows, most drafts) -> zeroed
    call: Callable[[StateOps, torch.Tensor, Tensors, StateRuns], torch.Tensor]
    lasting: Callable[[Tensors], torch.Tensor]  # the part of the tables that is not kept inputs


def drawn(seed: int, *shape: int, device: str = "cpu") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def conv_case(
    dtype: torch.dtype, channels: int = 45, taps: int = 4, silu: bool = True, device: str = "cpu"
) -> StateCase:
    weight, bias = drawn(1, channels, taps, device=device).to(dtype), drawn(2, channels, device=device).to(dtype)

    def call(ops: StateOps, inputs: torch.Tensor, tables: Tensors, runs: StateRuns) -> torch.Tensor:
        x = inputs[:, 3 : 3 + channels]
        return ops.short_conv(x, weight, bias if silu else None, tables[0], runs, silu=silu)

    return StateCase(
        channels + 5,
        lambda rows, most: (torch.zeros(rows, taps - 1 + most, channels, dtype=dtype, device=device),),
        call,
        lambda tables: tables[0][:, : taps - 1],
    )


def scan_case(dtype: torch.dtype, size: int = 37, state: int = 16, device: str = "cpu") -> StateCase:
    layer = Scan(
        -drawn(1, state, size, device=device).exp(), drawn(2, size, device=device), drawn(3, size, device=device)
    )

    def call(ops: StateOps, inputs: torch.Tensor, tables: Tensors, runs: StateRuns) -> torch.Tensor:
        x, dt, b, c = inputs.split([size, size, state, state], dim=1)
        return ops.scan(x, dt, b, c, layer, StateTable(*tables), runs)

    return _recurrent(2 * size + 2 * state, (state, size), 2 * size + state, dtype, call, device)


def head_scan_case(
    dtype: torch.dtype, heads: int = 6, size: int = 12, groups: int = 2, state: int = 20, device: str = "cpu"
) -> StateCase:
    a, d, bias = -drawn(1, heads, device=device).exp(), drawn(2, heads, device=device), drawn(3, heads, device=device)
    layer = HeadScan(a, d, bias, (0.01, 3.0))
    sizes = [heads * size, groups * state, groups * state, heads]

    def call(ops: StateOps, inputs: torch.Tensor, tables: Tensors, runs: StateRuns) -> torch.Tensor:
        x, b, c, dt = inputs.split(sizes, dim=1)
        b, c = b.unflatten(1, (groups, state)), c.unflatten(1, (groups, state))
        return ops.head_scan(x.unflatten(1, (heads, size)), dt, b, c, layer, StateTable(*tables), runs)

    kept = heads * size + heads + groups * state
    return _recurrent(sum(sizes), (heads, state, size), kept, dtype, call, device)


def delta_case(
    dtype: torch.dtype, key_heads: int = 2, heads: int = 4, key: int = 20, value: int = 12, device: str = "cpu"
) -> StateCase:
    layer = DeltaRule(-drawn(1, heads, device=device).exp(), drawn(2, heads, device=device))
    sizes = [key_heads * key, key_heads * key, heads * value, heads, heads]

    def call(ops: StateOps, inputs: torch.Tensor, tables: Tensors, runs: StateRuns) -> torch.Tensor:
        q, k, v, decay, beta = inputs.split(sizes, dim=1)
        q, k = q.unflatten(1, (key_heads, key)), k.unflatten(1, (key_heads, key))
        return ops.delta_rule((q, k, v.unflatten(1, (heads, value))), decay, beta, layer, StateTable(*tables), runs)

    kept = key_heads * key + heads * value + 2 * heads
    return _recurrent(sum(sizes), (heads, key, value), kept, dtype, call, device)


def _recurrent(
    width: int,
    state: tuple[int, ...],
    kept: int,
    dtype: torch.dtype,
    call: Callable[[StateOps, torch.Tensor, Tensors, StateRuns], torch.Tensor],
    device: str,
) -> StateCase:
    def tables(rows: int, most: int) -> Tensors:
        return torch.zeros(rows, *state, device=device), torch.zeros(rows, most, kept, dtype=dtype, device=device)

    return StateCase(width, tables, call, lambda tables: tables[0])


def runs_of(counts: list[tuple[int, int, int, int, int]], device: str = "cpu") -> StateRuns:
    """counts: row, tokens, replayed, certain and kept ones of each run."""
    rows, tokens, replayed, certain, kept = (
        torch.tensor(column, dtype=torch.int32, device=device) for column in zip(*counts, strict=True)
    )
    start = torch.nn.functional.pad(tokens.cumsum(0), (1, 0)).int()
    single = next((at for at, run in enumerate(counts) if run[1] != 1), len(counts))
    return StateRuns(rows, start, replayed, certain, kept, single, max(run[1] for run in counts))


@dataclass
class Stream:
    """A row's tokens, and how far it is."""

    inputs: torch.Tensor  # [tokens, width]
    done: int = 0  # tokens of which the row knows
    pending: int = 0  # of these, whose inputs are kept


@dataclass(frozen=True)
class Turn:
    """What a row computes in a forward."""

    row: int
    certain: int
    right: int = 0  # drafts that turn out to be the row's tokens
    wrong: int = 0
    padding: int = 0  # room for more


class Streams:
    """Rows that compute their tokens in any pieces, with drafts, in any company."""

    def __init__(self, case: StateCase, dtype: torch.dtype, num_rows: int, most: int = 4, device: str = "cpu") -> None:
        self.case, self._dtype, self._device, self._most = case, dtype, device, most
        self.tables = case.tables(num_rows, most)
        self.rows = [Stream(self._tokens(row, 200)) for row in range(num_rows)]
        self.outs: list[list[torch.Tensor]] = [[] for _ in range(num_rows)]

    def _tokens(self, seed: int, count: int) -> torch.Tensor:
        return drawn(100 + seed, count, self.case.width).to(self._device, self._dtype)

    def forward(self, ops: StateOps, turns: list[Turn], padding: int = 0) -> None:
        """A turn of nothing leaves its row as it is."""
        tokens, counts = [], []
        for turn in turns:
            row, wrong = self.rows[turn.row], self._tokens(77, turn.wrong + turn.padding)
            real = turn.certain + turn.right
            tokens += [row.inputs[row.done : row.done + real], wrong]
            kept = turn.right + turn.wrong
            counts.append((turn.row, real + len(wrong), row.pending if real + kept else 0, turn.certain, kept))
        runs = runs_of(counts, self._device)
        out = self.case.call(ops, torch.cat([*tokens, self._tokens(78, padding)]), self.tables, runs)
        for turn, begin in zip(turns, runs.query_start.tolist(), strict=False):
            row, real = self.rows[turn.row], turn.certain + turn.right
            self.outs[turn.row] += out[begin : begin + real]
            if real:
                row.done, row.pending = row.done + real, turn.right

    def settle(self, ops: StateOps) -> None:
        """Every state takes in all that its row knows, and one token."""
        self.forward(ops, [Turn(row, 1) for row in range(len(self.rows))])

    def whole(self, ops: StateOps, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same tokens of a row in one run by itself -> results, and what its state is then."""
        tables, stream = self.case.tables(2, 0), self.rows[row]
        runs = runs_of([(1, stream.done, 0, stream.done, 0)], self._device)
        out = self.case.call(ops, stream.inputs[: stream.done], tables, runs)
        return out, self.case.lasting(tables)[1]

    def check(self, ops: StateOps) -> None:
        for row in range(len(self.rows)):
            out, state = self.whole(ops, row)
            assert torch.equal(torch.stack(self.outs[row]), out), f"results of row {row}"
            assert torch.equal(self.case.lasting(self.tables)[row], state), f"state of row {row}"
