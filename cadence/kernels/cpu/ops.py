"""The ops on C kernels. Tensors go down as raw pointers; what a kernel does not take, torch does."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cadence.device.calls import Calls, float_word
from cadence.kernels import compose
from cadence.kernels.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.cpu.library import CpuLibrary
from cadence.kernels.cpu.packed import PACKED_TYPES, PackedOps, PackedRows
from cadence.kernels.ops import DrawParams, Pair, Rotation, Triple

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
Weight = torch.Tensor | PackedRows


class CpuOps:
    name = "cpu"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._c = CpuLibrary(calls)
        self._packed = PackedOps()

    def linear(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, PackedRows):
            return self._packed_linear(x, weight, bias)
        if x.dtype is not torch.float32 or weight.dtype is not torch.float32 or not weight.is_contiguous():
            return F.linear(x, weight, bias)
        x = _dense_rows(x)
        rows, (out_dim, in_dim) = x.shape[0], weight.shape
        out = self._calls.empty((rows, out_dim), x.dtype)
        bias_at = 0 if bias is None else bias.data_ptr()
        at = (out.data_ptr(), x.data_ptr(), weight.data_ptr(), bias_at)
        self._calls.call(self._c.linear, *at, rows, out_dim, in_dim, x.stride(0))
        return out

    def _packed_linear(self, x: torch.Tensor, weight: PackedRows, bias: torch.Tensor | None) -> torch.Tensor:
        if x.dtype not in PACKED_TYPES:
            return self._packed.linear(x, weight, bias)
        x = _dense_rows(x)
        out = self._calls.empty((x.shape[0], weight.rows), x.dtype)
        self._calls.call(self._c.packed_linear, *self._packed.words(out, x, weight, bias))
        return out

    def embed(self, ids: torch.Tensor, weight: Weight, scale: float) -> torch.Tensor:
        if isinstance(weight, PackedRows):
            return self._packed_embed(ids, weight, scale)
        if scale != 1.0 or ids.dtype is not torch.int32 or not ids.is_contiguous():
            return compose.embed(ids, weight, scale)
        out = self._calls.empty((ids.shape[0], weight.shape[1]), weight.dtype)
        at = (out.data_ptr(), weight.data_ptr(), ids.data_ptr())
        self._calls.call(self._c.embed, *at, ids.shape[0], weight.shape[1] * weight.element_size())
        return out

    def _packed_embed(self, ids: torch.Tensor, weight: PackedRows, scale: float) -> torch.Tensor:
        out = self._calls.empty((ids.shape[0], weight.cols), weight.row_dtype)
        self._calls.call(self._c.packed_rows, *self._packed.row_words(out, ids.contiguous(), weight.weights[0]))
        return out if scale == 1.0 else out * scale

    def zeros_like(self, x: torch.Tensor) -> torch.Tensor:
        return self._calls.zeros(x.shape, x.dtype)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width = x.shape[-1]
        rows3 = x if x.dim() == 3 and x.stride(2) == 1 else x.reshape(1, -1, width)  # [outer, inner, width]
        outer, inner, _ = rows3.shape
        out = self._calls.empty(x.shape, x.dtype)
        at = (out.data_ptr(), rows3.data_ptr(), weight.data_ptr())
        layout = (inner, rows3.stride(0), rows3.stride(1))
        types = (_DTYPES[x.dtype], _DTYPES[weight.dtype])
        self._calls.call(self._c.rms_norm, *at, outer * inner, width, *layout, float_word(eps), *types)
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        out, total = self._calls.empty(x.shape, x.dtype), self._calls.empty(x.shape, x.dtype)
        at = (out.data_ptr(), total.data_ptr(), x.data_ptr(), residual.data_ptr(), weight.data_ptr())
        types = (_DTYPES[x.dtype], _DTYPES[weight.dtype])
        self._calls.call(self._c.add_rms_norm, *at, x.numel() // width, width, float_word(eps), *types)
        return out, total

    def add_norm_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        norm_weight: torch.Tensor,
        eps: float,
        weight: Weight,
        bias: torch.Tensor | None,
    ) -> Pair:
        return compose.add_norm_linear(self, (x, residual), (norm_weight, eps), weight, bias)

    def add_norm_gated(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        norm_weight: torch.Tensor,
        eps: float,
        weight: Weight,
        bias: torch.Tensor | None,
        gelu: bool,
    ) -> Pair:
        return compose.add_norm_gated(self, (x, residual), (norm_weight, eps), weight, bias, gelu)

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate_mul(x, gelu=0)

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate_mul(x, gelu=1)

    def _gate_mul(self, x: torch.Tensor, gelu: int) -> torch.Tensor:
        x = _dense_rows(x)
        rows, width = x.shape[0], x.shape[1] // 2
        out = self._calls.empty((rows, width), x.dtype)
        at = (out.data_ptr(), x.data_ptr())
        self._calls.call(self._c.gate_mul, *at, rows, width, x.stride(0), _DTYPES[x.dtype], gelu)
        return out

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        at = (q.data_ptr(), k.data_ptr(), positions.data_ptr(), cos_sin.data_ptr())
        heads = (q.shape[1], q.stride(0), q.stride(1), k.shape[1], k.stride(0), k.stride(1))
        self._calls.call(self._c.rope, *at, q.shape[0], *heads, cos_sin.shape[1] // 2, _DTYPES[q.dtype])

    def write_kv(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        if k.dtype is not k_cache.dtype:
            k, v = k.to(k_cache.dtype), v.to(v_cache.dtype)
        size = k.element_size()
        blocks = (k_cache.stride(0), v_cache.stride(0))
        strides = [size * n for n in (*k.stride()[:2], *v.stride()[:2], *blocks)]
        at = (k.data_ptr(), v.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), slots.data_ptr())
        sizes = (k.shape[0], k.shape[1], k.shape[2] * size, k_cache.shape[2])
        self._calls.call(self._c.write_kv, *at, *sizes, *strides)

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, slots: torch.Tensor
    ) -> torch.Tensor:
        return compose.rope_write_kv(self, qkv, positions, rotation, kv, slots)

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        k_cache, v_cache = kv
        table = batch.block_tables[group]
        out = self._calls.empty(q.shape, q.dtype)
        held = (out, q, k_cache, v_cache, batch.rows, batch.query_start, batch.seq_lens, table)
        strides = (table.stride(0), q.stride(0), q.stride(1), k_cache.stride(0), v_cache.stride(0))
        heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
        sizes = (*strides, batch.num_sequences, *heads, k_cache.shape[2], shape.window, _DTYPES[q.dtype])
        bends = (float_word(shape.scale), float_word(shape.softcap))
        self._calls.call(self._c.attention, *[tensor.data_ptr() for tensor in held], *sizes, *bends)
        return out

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        rows = seeds.shape[0]
        out = self._calls.empty((rows, vocab_size), torch.float32)
        at = (out.data_ptr(), seeds.data_ptr(), seeds.stride(0), positions.data_ptr(), positions.stride(0))
        self._calls.call(self._c.gumbel, *at, rows, vocab_size)
        return out

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, params: DrawParams) -> Pair:
        logits, (lines, vocab) = _dense_rows(logits), logits.shape
        tokens, peaks = self._calls.empty((lines,), torch.int32), self._calls.empty((lines,), torch.float32)
        tables = (params.temperatures, params.seeds, params.random)
        strides = (logits.stride(0), *[table.stride(0) for table in tables])
        widths = (_DTYPES[logits.dtype], rows.element_size(), positions.element_size())
        held = (tokens, peaks, logits, rows.contiguous(), positions.contiguous(), *tables)
        self._calls.call(self._c.draw, *[tensor.data_ptr() for tensor in held], lines, vocab, *strides, *widths)
        return tokens, peaks


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H] itself where its rows are contiguous, else a contiguous copy."""
    return x if x.stride(1) == 1 else x.contiguous()
