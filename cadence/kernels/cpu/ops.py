"""The ops on C kernels. Tensors go down as raw pointers; what a kernel does not take, torch does."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cadence.device.calls import Calls, float_word
from cadence.kernels import compose
from cadence.kernels.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.cpu.packed import PACKED_TYPES, PackedOps, PackedRows
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.ops import Activation, DrawParams, Pair, Rotation, Triple

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_CACHE_DTYPES = {**_DTYPES, torch.int8: 3}
Weight = torch.Tensor | PackedRows
MaybeTensor = torch.Tensor | None


class CpuOps:
    name = "cpu"

    def __init__(self, calls: Calls, isa: str = "auto") -> None:
        """isa: as PackedOps has it."""
        self._calls = calls
        self._c = CpuLibrary(calls)
        self._packed = PackedOps(isa, calls.pool)
        self.isa = self._packed.isa

    def linear(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, PackedRows):
            return self._packed_linear(x, weight, bias, x.dtype)
        return F.linear(x, weight, bias)  # of a model on a CPU every matrix is packed

    def linear_terms(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
        return self.linear(x, weight, bias)

    def logits(self, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        if isinstance(weight, PackedRows):
            return self._packed_linear(x, weight, None, torch.float32)
        return self.linear(x, weight, None)

    def _packed_linear(
        self, x: torch.Tensor, weight: PackedRows, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """bias [rows] float32; dtype: of the result. Types that the products do not take are widened before."""
        x = _dense_rows(x) if x.dtype in PACKED_TYPES else self._scaled(x, 1.0, torch.float32)
        out = self._calls.empty((x.shape[0], weight.rows), dtype if dtype in PACKED_TYPES else torch.float32)
        self._calls.call(self._c.packed_linear, *self._packed.words(out, x, weight, bias))
        return out if out.dtype is dtype else self._scaled(out, 1.0, dtype)

    def embed(self, ids: torch.Tensor, weight: PackedRows, scale: float) -> torch.Tensor:
        found = weight.row_dtype if weight.row_dtype in PACKED_TYPES else torch.float32
        out = self._calls.empty((ids.shape[0], weight.cols), found)
        self._calls.call(self._c.packed_rows, *self._packed.row_words(out, ids.contiguous(), weight.weights[0]))
        return out if scale == 1.0 and found is weight.row_dtype else self._scaled(out, scale, weight.row_dtype)

    def _scaled(self, x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
        """x [T, H] * scale, rounded to `dtype`."""
        out = self._calls.empty(x.shape, dtype)
        types = (_DTYPES[x.dtype], _DTYPES[dtype])
        self._calls.call(self._c.scale, *_row_words(out, x), x.stride(0), float_word(scale), *types)
        return out

    def zeros_like(self, x: torch.Tensor) -> torch.Tensor:
        return self._calls.zeros(x.shape, x.dtype)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width = x.shape[-1]
        rows3 = x if x.dim() == 3 and x.stride(2) == 1 else x.contiguous().view(1, -1, width)  # [outer, inner, width]
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

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        return self._layer_norm((x.contiguous(), None), (weight, bias), eps)[0]

    def add_layer_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> Pair:
        return self._layer_norm((x.contiguous(), residual.contiguous()), (weight, bias), eps)

    def _layer_norm(
        self, stream: tuple[torch.Tensor, MaybeTensor], affine: tuple[MaybeTensor, ...], eps: float
    ) -> Pair:
        """stream = (x, residual or None), affine = (weight or None, bias or None) -> (norm, sum or x)."""
        x, residual = stream
        out = self._calls.empty(x.shape, x.dtype)
        total = x if residual is None else self._calls.empty(x.shape, x.dtype)
        at = (out.data_ptr(), total.data_ptr(), x.data_ptr(), *[_address(t) for t in (residual, *affine)])
        wtype = _DTYPES[x.dtype if affine[0] is None else affine[0].dtype]
        self._calls.call(self._c.layer_norm, *at, *x.shape, float_word(eps), _DTYPES[x.dtype], wtype)
        return out, total

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.contiguous(), y.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        at = (out.data_ptr(), x.data_ptr(), y.data_ptr())
        self._calls.call(self._c.add, *at, *x.shape, _DTYPES[x.dtype])
        return out

    def add_rows(self, x: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, offset: int) -> torch.Tensor:
        x = x.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        at = (out.data_ptr(), x.data_ptr(), table.data_ptr(), ids.data_ptr())
        self._calls.call(self._c.add_rows, *at, *x.shape, offset, _DTYPES[x.dtype], _DTYPES[table.dtype])
        return out

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        out = self._calls.empty(x.shape, x.dtype)
        self._calls.call(self._c.activate, *_row_words(out, x), x.stride(0), int(kind), _DTYPES[x.dtype])
        return out

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        out = self._calls.empty(logits.shape, torch.float32)
        words = (*_row_words(out, logits), logits.stride(0), float_word(cap))
        self._calls.call(self._c.softcap, *words, _DTYPES[logits.dtype])
        return out

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
        at = (k.data_ptr(), v.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), slots.data_ptr())
        strides = (*k.stride()[:2], *v.stride()[:2], k_cache.stride(0), v_cache.stride(0))
        self._calls.call(self._c.write_kv, *at, *k.shape, k_cache.shape[2], *strides, _types(k, k_cache))

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, batch: AttentionBatch, group: int
    ) -> torch.Tensor:
        return compose.rope_write_kv(self, qkv, positions, rotation, kv, batch, group)

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        k_cache, v_cache = kv
        table = batch.block_tables[group]
        out = self._calls.empty(q.shape, q.dtype)
        held = (out, q, k_cache, v_cache, batch.rows, batch.query_start, batch.seq_lens, table)
        strides = (table.stride(0), q.stride(0), q.stride(1), k_cache.stride(0), v_cache.stride(0))
        heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
        sizes = (*strides, batch.num_sequences, *heads, k_cache.shape[2], shape.window)
        types = _types(q, k_cache) + 65536 * self._packed.index
        bends = (float_word(shape.scale), float_word(shape.softcap))
        self._calls.call(self._c.attention, *[tensor.data_ptr() for tensor in held], *sizes, types, *bends)
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


def _types(x: torch.Tensor, cache: torch.Tensor) -> int:
    return _DTYPES[x.dtype] + 256 * _CACHE_DTYPES[cache.dtype]


def _address(tensor: MaybeTensor) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _row_words(out: torch.Tensor, x: torch.Tensor) -> tuple[int, ...]:
    """For a kernel from rows of x [T, H] to rows of a contiguous out [T, H]."""
    if x.stride(1) != 1:
        raise ValueError(f"rows of x {list(x.shape)} are not contiguous")
    return out.data_ptr(), x.data_ptr(), x.shape[0], x.shape[1]


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H] itself where its rows are contiguous, else a contiguous copy."""
    return x if x.stride(1) == 1 else x.contiguous()
