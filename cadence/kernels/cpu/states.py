"""Layers that keep a state in place of keys, in C."""

from __future__ import annotations

from typing import Any

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import NO_TENSOR, CpuLibrary
from cadence.kernels.cpu.runtime.row_words import dense_rows
from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateRuns, StateTable


class CpuStateOps:
    def __init__(self, calls: Calls, library: CpuLibrary) -> None:
        self._calls = calls
        self._c = library

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
        x = dense_rows(x)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.state_conv(
            out=out, x=x, weight=weight, bias=NO_TENSOR if bias is None else bias, inputs=inputs, **_run_words(runs),
            channels=x.shape[1], taps=weight.shape[1], x_stride=x.stride(0), inputs_row=inputs.stride(0),
            weight_channel=weight.stride(0), weight_tap=weight.stride(1), silu=int(silu), dtype=x.dtype,
            weight_dtype=weight.dtype, bias_dtype=weight.dtype if bias is None else bias.dtype,
        )  # fmt: skip
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
        x, dt, b, c = dense_rows(x), dense_rows(dt), dense_rows(b), dense_rows(c)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.state_scan(
            out=out, x=x, dt=dt, b=b, c=c, a=layer.a, d=layer.d, dt_bias=layer.dt_bias, **_table_words(table),
            **_run_words(runs), channels=x.shape[1], width=b.shape[1], x_stride=x.stride(0), dt_stride=dt.stride(0),
            b_stride=b.stride(0), c_stride=c.stride(0), dtype=x.dtype,
        )  # fmt: skip
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
        x, dt, b, c = _dense_heads(x), dense_rows(dt), _dense_heads(b), _dense_heads(c)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.state_head_scan(
            out=out, x=x, dt=dt, b=b, c=c, a=layer.a, d=layer.d, dt_bias=layer.dt_bias, **_table_words(table),
            **_run_words(runs), heads=x.shape[1], size=x.shape[2], groups=b.shape[1], width=b.shape[2],
            x_stride=x.stride(0), dt_stride=dt.stride(0), b_stride=b.stride(0), c_stride=c.stride(0), dtype=x.dtype,
            limit_low=layer.dt_limit[0], limit_high=layer.dt_limit[1],
        )  # fmt: skip
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
        q, k, v = map(_dense_heads, qkv)
        decay, beta = dense_rows(decay), dense_rows(beta)
        out = self._calls.empty(v.shape, v.dtype)
        self._c.state_delta(
            out=out, q=q, k=k, v=v, decay=decay, beta=beta, a=layer.a, dt_bias=layer.dt_bias, **_table_words(table),
            **_run_words(runs), key_heads=k.shape[1], heads=v.shape[1], key=k.shape[2], value=v.shape[2],
            q_stride=q.stride(0), k_stride=k.stride(0), v_stride=v.stride(0), decay_stride=decay.stride(0),
            beta_stride=beta.stride(0), dtype=v.dtype,
        )  # fmt: skip
        return out

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, *, group: int, norm_first: bool
    ) -> torch.Tensor:
        x, gate = dense_rows(x), dense_rows(gate)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.gated_norm(
            out=out, x=x, gate=gate, weight=weight, rows=x.shape[0], groups=x.shape[1] // group, width=group,
            x_stride=x.stride(0), gate_stride=gate.stride(0), weight_step=0 if weight.shape[0] == group else group,
            norm_first=int(norm_first), eps=eps, dtype=x.dtype, weight_dtype=weight.dtype,
        )  # fmt: skip
        return out

    def gate(self, x: torch.Tensor, gate: torch.Tensor, *, silu: bool) -> torch.Tensor:
        return self._gated(x, gate, silu=int(silu), sigmoid=0, one_gate=0)

    def sigmoid_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self._gated(x, gate, silu=0, sigmoid=1, one_gate=int(gate.shape[1] != x.shape[1]))

    def _gated(self, x: torch.Tensor, gate: torch.Tensor, **how: int) -> torch.Tensor:
        x, gate = dense_rows(x), dense_rows(gate)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.gate(
            out=out, x=x, gate=gate, rows=x.shape[0], width=x.shape[1], x_stride=x.stride(0),
            gate_stride=gate.stride(0), dtype=x.dtype, **how,
        )  # fmt: skip
        return out


def _run_words(runs: StateRuns) -> dict[str, Any]:
    return {
        "rows": runs.rows, "query_start": runs.query_start, "replayed": runs.replayed, "certain": runs.certain,
        "kept": runs.kept, "num_runs": runs.rows.shape[0],
    }  # fmt: skip


def _table_words(table: StateTable) -> dict[str, Any]:
    state, kept = table.state, table.kept
    return {"state": state, "state_row": state.stride(0), "kept_inputs": kept, "kept_row": kept.stride(0)}


def _dense_heads(x: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] itself where the heads of a token lie one after another, else a contiguous copy."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
