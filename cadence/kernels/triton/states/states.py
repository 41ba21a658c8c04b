"""The ops of layers that keep a state, on Triton kernels.

Runs of one token and of a few are walked through token by token, and with `deterministic` all others, too: a token's
bits then depend on its row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateRuns, StateTable
from cadence.kernels.triton.states.chunks_delta import DeltaTile, delta_chunks
from cadence.kernels.triton.states.chunks_heads import ChunkTile, fit_chunks, scan_chunks
from cadence.kernels.triton.states.conv import short_conv
from cadence.kernels.triton.states.gates import gate_by, gated_norm
from cadence.kernels.triton.states.keep import keep_inputs
from cadence.kernels.triton.states.walk import Walk, WalkTile, block_of, walks_of
from cadence.kernels.triton.states.walk_channels import walk_channels
from cadence.kernels.triton.states.walk_delta import walk_delta
from cadence.kernels.triton.states.walk_heads import walk_heads

_HEADS = ChunkTile(chunk=64, block=64, warps=4, stages=2, programs=264)
_DELTA = DeltaTile(chunk=64, warps=4, block=32, walk_warps=4, stages=2)


@dataclass(frozen=True, slots=True)
class Chunking:
    """How prompts are cut where bits may depend on that."""

    few_tokens: int = 16  # runs of up to so many are walked through
    heads: ChunkTile = _HEADS
    delta: DeltaTile = _DELTA


class TritonStateOps:
    def __init__(self, deterministic: bool = False, pdl: bool = False, chunking: Chunking | None = None) -> None:
        self._deterministic = deterministic
        self._pdl = pdl
        self._chunking = chunking or Chunking()

    def _parts(self, runs: StateRuns, table: StateTable) -> Iterator[tuple[Walk, bool]]:
        """-> (what is walked through, or taken in chunks, as is said). Of runs that are taken in chunks drafts are
        walked through, and so are those of few tokens, such as drafts have."""
        few, drafts = self._chunking.few_tokens, table.kept.shape[1] > 0
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
        chunks = fit_chunks(self._chunking.heads, b.shape[2], x.shape[2])
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
        tile = WalkTile(block_of(v.shape[2], 32), 4)
        for walk, in_chunks in self._parts(runs, table):
            if in_chunks:
                delta_chunks(out, qkv, (decay, beta), layer, table, walk, self._chunking.delta)
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
