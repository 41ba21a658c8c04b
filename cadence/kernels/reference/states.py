"""Layers that keep a state in place of keys, in plain torch: token by token, with the same calls for every token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateRuns, StateTable

LENGTH_EPS = 1e-6  # under the root of a query's or key's length
Parts = tuple[torch.Tensor, ...]
# (state, what a token is to it, what reads it) -> the state with the token, and what was read.
Step = Callable[[torch.Tensor, Parts, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Run:
    row: int
    begin: int  # of its tokens
    replayed: int
    certain: int
    kept: int

    @property
    def certain_tokens(self) -> range:
        return range(self.begin, self.begin + self.certain)

    @property
    def kept_tokens(self) -> range:
        return range(self.begin + self.certain, self.begin + self.certain + self.kept)


class ReferenceStateOps:
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
        taps, out = weight.shape[1], torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        wide, first = weight.float(), 0.0 if bias is None else bias.float()
        for run in _runs(runs):
            kept = inputs[run.row]
            tokens = x[run.begin : run.begin + run.certain + run.kept]
            seen = torch.cat([kept[run.replayed : run.replayed + taps - 1], tokens])
            for at, token in enumerate((*run.certain_tokens, *run.kept_tokens)):
                total = torch.zeros_like(wide[:, 0]) + first
                for tap in range(taps):
                    total = total + wide[:, tap] * seen[at + tap].float()
                out[token] = F.silu(total) if silu else total
            kept[: taps - 1 + run.kept] = seen[run.certain :]
        return out

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
        def step(state: torch.Tensor, parts: Parts, c: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            x, dt, b = parts
            dt = F.softplus(dt + layer.dt_bias)
            state = torch.exp(dt * layer.a) * state + b[:, None] * (dt * x)
            return state, x if c is None else (state * c[:, None]).sum(0) + layer.d * x

        return _walk(step, (x, dt, b), c, table, runs).to(x.dtype)

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
        of_head = _shared(x.shape[1], b.shape[1], x.device)

        def step(state: torch.Tensor, parts: Parts, c: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            x, dt, b = parts
            dt = F.softplus(dt + layer.dt_bias).clamp(*layer.dt_limit)
            added = b[of_head][:, :, None] * (dt[:, None] * x)[:, None, :]
            state = torch.exp(dt * layer.a)[:, None, None] * state + added
            return state, x if c is None else (state * c[of_head][:, :, None]).sum(1) + layer.d[:, None] * x

        return _walk(step, (x, dt, b), c, table, runs).to(x.dtype)

    def delta_rule(
        self,
        qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        decay: torch.Tensor,
        beta: torch.Tensor,
        layer: DeltaRule,
        table: StateTable,
        runs: StateRuns,
    ) -> torch.Tensor:
        q, k, v = qkv
        of_head = _shared(v.shape[1], k.shape[1], v.device)

        def step(state: torch.Tensor, parts: Parts, q: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            v, k, decay, beta = parts
            k = _of_length_1(k)[of_head][:, :, None]
            state = torch.exp(layer.a * F.softplus(decay + layer.dt_bias))[:, None, None] * state
            state = state + k * (beta.sigmoid()[:, None] * (v - (state * k).sum(1)))[:, None, :]
            if q is None:
                return state, v
            q = _of_length_1(q) * q.shape[-1] ** -0.5
            return state, (state * q[of_head][:, :, None]).sum(1)

        return _walk(step, (v, k, decay, beta), q, table, runs).to(v.dtype)

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, group: int, norm_first: bool
    ) -> torch.Tensor:
        shape, bend = (x.shape[0], -1, group), F.silu(gate.float())
        wide = x.float() if norm_first else x.float() * bend
        normed = wide.reshape(shape) * torch.rsqrt(wide.reshape(shape).square().mean(-1, keepdim=True) + eps)
        weighed = (normed * weight.float().view(-1, group)).reshape(x.shape)
        return (weighed * bend if norm_first else weighed).to(x.dtype)

    def gate(self, x: torch.Tensor, gate: torch.Tensor, *, silu: bool) -> torch.Tensor:
        wide = gate.float()
        return (x.float() * (F.silu(wide) if silu else wide)).to(x.dtype)

    def sigmoid_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return (x.float() * gate.float().sigmoid()).to(x.dtype)


def _walk(step: Step, inputs: Parts, reads: torch.Tensor, table: StateTable, runs: StateRuns) -> torch.Tensor:
    """inputs: what tokens are to a state [T, ...] each, the first of them of the result's shape, which is float32;
    reads [T, ...]"""
    out = torch.zeros(inputs[0].shape, dtype=torch.float32, device=reads.device)
    sizes, shapes = [part[0].numel() for part in inputs], [part.shape[1:] for part in inputs]
    for run in _runs(runs):
        state = table.state[run.row].clone()
        for line in table.kept[run.row, : run.replayed]:
            parts = zip(line.split(sizes), shapes, strict=True)
            state, _ = step(state, tuple(part.view(shape).float() for part, shape in parts), None)
        for token in run.certain_tokens:
            state, out[token] = step(state, tuple(part[token].float() for part in inputs), reads[token].float())
        table.state[run.row] = state
        for at, token in enumerate(run.kept_tokens):
            table.kept[run.row, at] = torch.cat([part[token].flatten() for part in inputs])
            state, out[token] = step(state, tuple(part[token].float() for part in inputs), reads[token].float())
    return out


def _runs(runs: StateRuns) -> Iterator[_Run]:
    """Those that do not leave their row as it is."""
    columns = (runs.rows, runs.query_start, runs.replayed, runs.certain, runs.kept)
    for row, begin, replayed, certain, kept in zip(*(column.tolist() for column in columns), strict=False):
        if replayed or certain or kept:
            yield _Run(row=row, begin=begin, replayed=replayed, certain=certain, kept=kept)


def _shared(num_heads: int, num_groups: int, device: torch.device) -> torch.Tensor:
    """The group of each head."""
    return torch.arange(num_heads, device=device) * num_groups // num_heads


def _of_length_1(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS)
