"""The ops of layers that keep a state, on Triton kernels.

Runs of one token and of a few are walked through token by token, and with `deterministic` all others, too: a token's
bits then depend on its row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateRuns, StateTable
from cadence.kernels.triton.states.chunks_delta import delta_chunks
from cadence.kernels.triton.states.chunks_heads import scan_chunks
from cadence.kernels.triton.states.conv import short_conv
from cadence.kernels.triton.states.gates import gate_by, gated_norm
from cadence.kernels.triton.states.keep import keep_inputs
from cadence.kernels.triton.states.tiles import StateTiles
from cadence.kernels.triton.states.walk import Walk, walks_of
from cadence.kernels.triton.states.walk_channels import walk_channels
from cadence.kernels.triton.states.walk_delta import walk_delta
from cadence.kernels.triton.states.walk_heads import walk_heads


class TritonStateOps:
    def __init__(self, deterministic: bool = False, pdl: bool = False, tiles: StateTiles | None = None) -> None:
        self._deterministic = deterministic
        self._pdl = pdl
        self._tiles = tiles or StateTiles()

    def _parts(self, runs: StateRuns, table: StateTable) -> Iterator[tuple[Walk, bool]]:
        """-> (what is walked through, or taken in chunks, as is said). Of runs that are taken in chunks drafts are
        walked through, and so are those of few tokens, such as drafts have."""
        few, drafts = self._tiles.few_tokens, table.kept.shape[1] > 0
        for walk in walks_of(runs):
            if self._deterministic or walk.single or runs.max_query_len <= few:
                yield walk, False
                continue
            walk = replace(walk, most_tokens=few if drafts else 0)
            yield walk, True
            if drafts:
                yield walk, False

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
        short, long = (tile.fit(x.shape[1]) for tile in (self._tiles.channels, self._tiles.prompt_channels))
        for walk in walks_of(runs):
            is_long = not (self._deterministic or walk.single or runs.max_query_len <= self._tiles.few_tokens)
            tile = long if is_long else short
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
        tile = self._tiles.heads.fit(x.shape[2])
        chunks = self._tiles.head_chunks.fit(b.shape[2], x.shape[2])
        for walk, in_chunks in self._parts(runs, table):
            if in_chunks:
                scan_chunks(out, x, dt, (b, c), layer, table, walk, chunks)
            else:
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
        tile, chunks = self._tiles.delta.fit(v.shape[2]), self._tiles.delta_chunks.fit(v.shape[2])
        for walk, in_chunks in self._parts(runs, table):
            if in_chunks:
                delta_chunks(out, qkv, (decay, beta), layer, table, walk, chunks)
            else:
                walk_delta(out, qkv, (decay, beta), layer, table, walk, tile, self._pdl)
        keep_inputs((v, k, decay, beta), table, runs)
        return out

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, group: int, norm_first: bool
    ) -> torch.Tensor:
        return gated_norm(x, gate, weight, eps, group, norm_first, self._pdl)

    def gate(self, x: torch.Tensor, gate: torch.Tensor, *, silu: bool) -> torch.Tensor:
        return gate_by(x, gate, "silu" if silu else "", self._pdl)

    def sigmoid_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return gate_by(x, gate, "sigmoid", self._pdl)
