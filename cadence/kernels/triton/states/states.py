"""The ops of layers that keep a state, on Triton kernels.

Runs of one token and of a few are walked through token by token, and with `deterministic` all others, too: a token's
bits then depend on its row alone.
"""

from __future__ import annotations

import torch

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateRuns, StateTable
from cadence.kernels.triton.states.conv import short_conv
from cadence.kernels.triton.states.gates import gate_by, gated_norm
from cadence.kernels.triton.states.keep import keep_inputs
from cadence.kernels.triton.states.walk import WalkTile, block_of, walks_of
from cadence.kernels.triton.states.walk_channels import walk_channels
from cadence.kernels.triton.states.walk_delta import walk_delta
from cadence.kernels.triton.states.walk_heads import walk_heads


class TritonStateOps:
    def __init__(self, deterministic: bool = False, pdl: bool = False) -> None:
        self._deterministic = deterministic
        self._pdl = pdl

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
        return short_conv(x, weight, bias, inputs, runs, silu=silu, pdl=self._pdl)

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
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        tile = WalkTile(block_of(x.shape[1], 32), 1, 4)
        for walk in walks_of(runs):
            walk_channels(out, (x, dt, b, c), layer, table, walk, tile, self._pdl)
        keep_inputs((x, dt, b), table, runs)
        return out

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
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        tile = WalkTile(block_of(x.shape[2], 32), 4)
        for walk in walks_of(runs):
            walk_heads(out, x, dt, (b, c), layer, table, walk, tile, self._pdl)
        keep_inputs((x, dt, b), table, runs)
        return out

    def delta_rule(
        self,
        qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        decay: torch.Tensor,
        beta: torch.Tensor,
        layer: DeltaRule,
        table: StateTable,
        runs: StateRuns,
    ) -> torch.Tensor:
        _, k, v = qkv
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        tile = WalkTile(block_of(v.shape[2], 32), 4)
        for walk in walks_of(runs):
            walk_delta(out, qkv, (decay, beta), layer, table, walk, tile, self._pdl)
        keep_inputs((v, k, decay, beta), table, runs)
        return out

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, group: int, norm_first: bool
    ) -> torch.Tensor:
        return gated_norm(x, gate, weight, eps, group, norm_first, self._pdl)

    def gate(self, x: torch.Tensor, gate: torch.Tensor, *, silu: bool) -> torch.Tensor:
        return gate_by(x, gate, silu, self._pdl)
