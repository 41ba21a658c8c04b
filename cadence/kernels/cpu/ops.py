"""The ops on C kernels. Tensors go down as raw pointers; what a kernel does not take, torch does."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64, c_void_p

import torch
import torch.nn.functional as F

from cadence.kernels import compose
from cadence.kernels.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.cpu.build import load_library
from cadence.kernels.ops import DrawParams, Pair, Rotation, Triple

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_SIGNATURES: dict[str, list[type]] = {
    "cadence_linear": [c_void_p] * 4 + [c_int64] * 4,
    "cadence_rms_norm": [c_void_p] * 3 + [c_int64] * 3 + [c_float, c_int, c_int],
    "cadence_add_rms_norm": [c_void_p] * 5 + [c_int64] * 2 + [c_float, c_int, c_int],
    "cadence_gate_mul": [c_void_p] * 2 + [c_int64] * 3 + [c_int, c_int],
    "cadence_rope": [c_void_p] * 4 + [c_int64, c_void_p, c_void_p, c_int64, c_int],
    "cadence_write_kv": [c_void_p] * 5 + [c_int64] * 4 + [c_void_p],
    "cadence_attention": [c_void_p, c_void_p, c_float, c_float],
    "cadence_draw": [c_void_p] * 9,
    "cadence_gumbel": [c_void_p, c_void_p, c_int64, c_void_p] + [c_int64] * 3,
}
_Pointers = c_void_p * 8
_Sizes = c_int64 * 12
_Heads = c_int64 * 3
_Strides = c_int64 * 6
_DrawSizes = c_int64 * 7


class CpuOps:
    name = "cpu"

    def __init__(self) -> None:
        library = load_library()
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._c = library

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if x.dtype is not torch.float32 or weight.dtype is not torch.float32 or not weight.is_contiguous():
            return F.linear(x, weight, bias)
        x = _dense_rows(x)
        rows, (out_dim, in_dim) = x.shape[0], weight.shape
        out = torch.empty((rows, out_dim), dtype=x.dtype)
        bias_at = 0 if bias is None else bias.data_ptr()
        at = (out.data_ptr(), x.data_ptr(), weight.data_ptr(), bias_at)
        self._c.cadence_linear(*at, rows, out_dim, in_dim, x.stride(0))
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width = x.shape[-1]
        flat = _dense_rows(x.reshape(-1, width))
        out = torch.empty(x.shape, dtype=x.dtype)
        at = (out.data_ptr(), flat.data_ptr(), weight.data_ptr())
        types = (_DTYPES[x.dtype], _DTYPES[weight.dtype])
        self._c.cadence_rms_norm(*at, flat.shape[0], width, flat.stride(0), eps, *types)
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        out, total = torch.empty_like(x), torch.empty_like(x)
        at = (out.data_ptr(), total.data_ptr(), x.data_ptr(), residual.data_ptr(), weight.data_ptr())
        types = (_DTYPES[x.dtype], _DTYPES[weight.dtype])
        self._c.cadence_add_rms_norm(*at, x.numel() // width, width, eps, *types)
        return out, total

    def add_norm_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        norm_weight: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> Pair:
        return compose.add_norm_linear(self, (x, residual), (norm_weight, eps), weight, bias)

    def add_norm_gated(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        norm_weight: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
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
        out = torch.empty((rows, width), dtype=x.dtype)
        self._c.cadence_gate_mul(out.data_ptr(), x.data_ptr(), rows, width, x.stride(0), _DTYPES[x.dtype], gelu)
        return out

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        at = (q.data_ptr(), k.data_ptr(), positions.data_ptr(), cos_sin.data_ptr())
        q_shape = _Heads(q.shape[1], q.stride(0), q.stride(1))
        k_shape = _Heads(k.shape[1], k.stride(0), k.stride(1))
        self._c.cadence_rope(*at, q.shape[0], q_shape, k_shape, cos_sin.shape[1] // 2, _DTYPES[q.dtype])

    def write_kv(
        self, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        k, v = k.to(k_cache.dtype), v.to(v_cache.dtype)
        size = k.element_size()
        blocks = (k_cache.stride(0), v_cache.stride(0))
        strides = _Strides(*[size * n for n in (*k.stride()[:2], *v.stride()[:2], *blocks)])
        at = (k.data_ptr(), v.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), slots.data_ptr())
        self._c.cadence_write_kv(*at, k.shape[0], k.shape[1], k.shape[2] * size, k_cache.shape[2], strides)

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, slots: torch.Tensor
    ) -> torch.Tensor:
        return compose.rope_write_kv(self, qkv, positions, rotation, kv, slots)

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        k_cache, v_cache = kv
        table = batch.block_tables[group]
        out = torch.empty(q.shape, dtype=q.dtype)
        held = (out, q, k_cache, v_cache, batch.rows, batch.query_start, batch.seq_lens, table)
        strides = (table.stride(0), q.stride(0), q.stride(1), k_cache.stride(0), v_cache.stride(0))
        heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
        sizes = (*strides, batch.num_sequences, *heads, k_cache.shape[2], shape.window, _DTYPES[q.dtype])
        pointers = _Pointers(*[tensor.data_ptr() for tensor in held])
        self._c.cadence_attention(pointers, _Sizes(*sizes), shape.scale, shape.softcap)
        return out

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        rows = seeds.shape[0]
        out = torch.empty((rows, vocab_size), dtype=torch.float32)
        at = (out.data_ptr(), seeds.data_ptr(), seeds.stride(0), positions.data_ptr(), positions.stride(0))
        self._c.cadence_gumbel(*at, rows, vocab_size)
        return out

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, params: DrawParams) -> Pair:
        logits, (lines, vocab) = _dense_rows(logits), logits.shape
        rows, positions = rows.long().contiguous(), positions.long().contiguous()
        tokens, peaks = torch.empty(lines, dtype=torch.int32), torch.empty(lines, dtype=torch.float32)
        tables = (params.temperatures, params.seeds, params.random)
        sizes = (lines, vocab, logits.stride(0), *[table.stride(0) for table in tables], _DTYPES[logits.dtype])
        held = (tokens, peaks, logits, rows, positions, *tables)
        self._c.cadence_draw(*[tensor.data_ptr() for tensor in held], _DrawSizes(*sizes))
        return tokens, peaks


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H] itself where its rows are contiguous, else a contiguous copy."""
    return x if x.stride(1) == 1 else x.contiguous()
