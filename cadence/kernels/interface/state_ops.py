"""Layers that keep a state in place of keys. `reference`, `triton` and `cpu` each offer these ops.

A row's state has taken in the tokens that it has for certain, in order and each once. Tokens that may yet be dropped,
drafts, are computed on a copy, and what they are to the state (their inputs) is kept beside it. The next forward of the
row begins with those that turned out to be the row's tokens: it replays their inputs, then goes on with its run. So a
state needs no rollback, a row has one state whatever the number of drafts, and the bits are those without drafts.

In every recurrent state the last dimension is that of what is written (channels, entries of a head or of a value), the
one before it that of what it is written and read by (b and c, k and q).

Each op walks through a run token by token, or gives the bits of that walk: on the CPU always, on a GPU where it is
deterministic. A run's result depends on that run and its row alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class StateRuns:
    """R rows' runs, T tokens in all: those of run r are [query_start[r], query_start[r + 1]). All is written in place,
    as a `StepBatch` is: a recorded forward reads it there. What lies after the last run is padding: its results are
    not read, and nothing of it is stored.

    Of a run that leaves its row as it is (a quiet row, padding) the three counts are 0. The first token of any other
    run is certain.
    """

    rows: torch.Tensor  # [R] int32: lines of the tables
    query_start: torch.Tensor  # [R + 1] int32
    replayed: torch.Tensor  # [R] int32: leading ones of the kept inputs that come before the run
    certain: torch.Tensor  # [R] int32: leading tokens of the run that the state takes in
    kept: torch.Tensor  # [R] int32: tokens after these, whose inputs are kept
    num_single: int  # leading runs of one token, known to the host
    max_query_len: int  # longest run, known to the host


@dataclass(frozen=True, slots=True)
class StateTable:
    """A layer's recurrent states."""

    state: torch.Tensor  # [num_rows, ...] float32
    kept: torch.Tensor  # [num_rows, most drafts, width] of the activations' type; what lies where is the op's affair


@dataclass(frozen=True, slots=True)
class Scan:
    """Mamba: s[n, d] = exp(dt[d] * a[n, d]) * s[n, d] + dt[d] * b[n] * x[d]; y[d] = sum_n c[n] * s[n, d] + d[d] * x[d].
    dt is softplus(dt + dt_bias)."""

    a: torch.Tensor  # [N, D] float32, negative: transposed from how checkpoints have it
    d: torch.Tensor  # [D] float32
    dt_bias: torch.Tensor  # [D] float32


@dataclass(frozen=True, slots=True)
class HeadScan:
    """Mamba-2: s[h, n, p] = exp(dt[h] * a[h]) * s[h, n, p] + dt[h] * b[g, n] * x[h, p]; y[h, p] = sum_n c[g, n] *
    s[h, n, p] + d[h] * x[h, p], with g = h * G // H. dt is softplus(dt + dt_bias), clamped."""

    a: torch.Tensor  # [H] float32, negative
    d: torch.Tensor  # [H] float32
    dt_bias: torch.Tensor  # [H] float32
    dt_limit: tuple[float, float] = (0.0, float("inf"))


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Gated delta rule, of head h of the values, with the queries and keys of head h * Hk // Hv, each divided by its
    length (eps 1e-6 under the root), queries by sqrt(Dk) as well: s *= exp(g); u = beta * (v - s^T k); s += k u^T;
    o = s^T q. g = a * softplus(decay + dt_bias), beta = sigmoid(beta)."""

    a: torch.Tensor  # [Hv] float32, negative
    dt_bias: torch.Tensor  # [Hv] float32


class StateOps(Protocol):
    """Inputs may be strided views of one projection, dense in their last dimension. Sums are taken in float32; results
    are of x's dtype, new and contiguous."""

    def short_conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        inputs: torch.Tensor,
        runs: StateRuns,
        *,
        silu: bool,
    ) -> torch.Tensor:
        """Causal, each channel by itself. x [T, C], weight [C, K], bias [C] -> [T, C], silu of it where asked.

        inputs [num_rows, K - 1 + most drafts, C] of x's dtype: the last K - 1 that a row's state has taken in, the
        newest last, then those that are kept."""
        ...

    def scan(
        self,
        x: torch.Tensor,
        dt: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        layer: Scan,
        table: StateTable,
        runs: StateRuns,
    ) -> torch.Tensor:
        """x and dt [T, D], b and c [T, N], table.state [num_rows, N, D], kept 2 * D + N -> [T, D]."""
        ...

    def head_scan(
        self,
        x: torch.Tensor,
        dt: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        layer: HeadScan,
        table: StateTable,
        runs: StateRuns,
    ) -> torch.Tensor:
        """x [T, H, P], dt [T, H], b and c [T, G, N], table.state [num_rows, H, N, P], kept H * P + H + G * N
        -> [T, H, P]."""
        ...

    def delta_rule(
        self,
        qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        decay: torch.Tensor,
        beta: torch.Tensor,
        layer: DeltaRule,
        table: StateTable,
        runs: StateRuns,
    ) -> torch.Tensor:
        """qkv = q and k [T, Hk, Dk], v [T, Hv, Dv]; decay and beta [T, Hv]; table.state [num_rows, Hv, Dk, Dv], kept
        Hk * Dk + Hv * Dv + 2 * Hv -> [T, Hv, Dv]."""
        ...

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, group: int, norm_first: bool
    ) -> torch.Tensor:
        """x and gate [T, D], weight [D] or [group], for each `group` entries: rms_norm(x * silu(gate)) * weight or,
        norm_first, rms_norm(x) * weight * silu(gate). -> [T, D]"""
        ...

    def gate(self, x: torch.Tensor, gate: torch.Tensor, *, silu: bool) -> torch.Tensor:
        """x and gate [T, D] -> x * gate, or x * silu(gate). [T, D]"""
        ...

    def sigmoid_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x [T, D], gate [T, D] or [T, 1] -> x * sigmoid(gate). [T, D]"""
        ...
