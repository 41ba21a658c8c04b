"""The ops on C kernels. Tensors go down as raw pointers; what a kernel does not take, torch does."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from cadence.device.calls import Calls
from cadence.kernels.cpu.experts import CpuExpertOps
from cadence.kernels.cpu.lora import CpuLoraOps
from cadence.kernels.cpu.packed.pack import WeightPacking
from cadence.kernels.cpu.packed.packer import CpuPacker
from cadence.kernels.cpu.packed.products import PackedProducts
from cadence.kernels.cpu.rope import CpuRopeOps
from cadence.kernels.cpu.rows import CpuRowOps
from cadence.kernels.cpu.runtime.library import NO_TENSOR, CpuLibrary
from cadence.kernels.cpu.runtime.memory import PackedMemory
from cadence.kernels.cpu.runtime.row_words import dense_rows, row_words
from cadence.kernels.cpu.runtime.table import TABLE
from cadence.kernels.cpu.states import CpuStateOps
from cadence.kernels.cpu.suffix import CpuSuffixOps
from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.interface.matrix import Norm
from cadence.kernels.interface.ops import (
    NO_IDS,
    OWN_SCALES,
    Activation,
    DrawParams,
    MaybeTensor,
    Pair,
    Rotation,
    Triple,
)
from cadence.kernels.interface.speech_lines import SpeechLines, WrittenTokens
from cadence.kernels.reference import compose

TABLE.check("activation", {kind.name: int(kind) for kind in Activation})


class CpuOps:
    name = "cpu"
    packs = True

    def __init__(self, calls: Calls, isa: str = "auto") -> None:
        """isa: as PackedOps has it."""
        self._calls = calls
        self._c = CpuLibrary(calls)
        self.packed = PackedProducts(calls, self._c, isa)
        self.rows = CpuRowOps(self._calls, self._c)
        self.suffix = CpuSuffixOps(self._c)
        self.lora = CpuLoraOps(calls, self._c)
        self.axes = CpuRopeOps(self._c)
        self.experts = CpuExpertOps(calls, self._c, self.packed)
        self.states = CpuStateOps(self._calls, self._c)

    def packer(self, method: str, dtype: torch.dtype, device: torch.device) -> CpuPacker:
        return CpuPacker(self.packed, WeightPacking(self._c.functions, PackedMemory()), method, dtype)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)  # of a model on a CPU every matrix is packed

    def linear_terms(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.linear(x, weight, bias)

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.linear(x, weight, None)

    def embed(self, ids: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        return F.embedding(ids, weight) * scale

    def zeros_like(self, x: torch.Tensor) -> torch.Tensor:
        return self._calls.zeros(x.shape, x.dtype)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width = x.shape[-1]
        rows3 = x if x.dim() == 3 and x.stride(2) == 1 else x.contiguous().view(1, -1, width)  # [outer, inner, width]
        outer, inner, _ = rows3.shape
        out = self._calls.empty(x.shape, x.dtype)
        self._c.rms_norm(
            out=out, x=rows3, weight=weight, rows=outer * inner, width=width, inner=inner,
            outer_stride=rows3.stride(0), inner_stride=rows3.stride(1), eps=eps, dtype=x.dtype,
            weight_dtype=weight.dtype,
        )  # fmt: skip
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        out, total = self._calls.empty(x.shape, x.dtype), self._calls.empty(x.shape, x.dtype)
        self._c.add_rms_norm(
            out=out, total=total, x=x, residual=residual, weight=weight, rows=x.numel() // width, width=width, eps=eps,
            dtype=x.dtype, weight_dtype=weight.dtype,
        )  # fmt: skip
        return out, total

    def layer_norm(self, x: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> torch.Tensor:
        return self._layer_norm((x.contiguous(), None), (weight, bias), eps)[0]

    def add_layer_norm(self, stream: Pair, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> Pair:
        return self._layer_norm((stream[0].contiguous(), stream[1].contiguous()), (weight, bias), eps)

    def _layer_norm(
        self, stream: tuple[torch.Tensor, MaybeTensor], affine: tuple[MaybeTensor, ...], eps: float
    ) -> Pair:
        """stream = (x, residual or None), affine = (weight or None, bias or None) -> (norm, sum or x)."""
        (x, residual), (weight, bias) = stream, affine
        out = self._calls.empty(x.shape, x.dtype)
        total = x if residual is None else self._calls.empty(x.shape, x.dtype)
        self._c.layer_norm(
            out=out, total=total, x=x, residual=_or_null(residual), weight=_or_null(weight), bias=_or_null(bias),
            rows=x.shape[0], width=x.shape[1], heads=1, x_stride=x.stride(0), eps=eps, dtype=x.dtype,
            weight_dtype=x.dtype if weight is None else weight.dtype,
        )  # fmt: skip
        return out, total

    def head_layer_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        tokens, heads, width = x.shape
        out = self._calls.empty(x.shape, x.dtype)
        self._c.layer_norm(
            out=out, total=NO_TENSOR, x=x, residual=NO_TENSOR, weight=weight, bias=NO_TENSOR, rows=tokens * heads,
            width=width, heads=heads, x_stride=x.stride(0), eps=eps, dtype=x.dtype, weight_dtype=weight.dtype,
        )  # fmt: skip
        return out

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.contiguous(), y.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        self._c.add(out=out, x=x, y=y, rows=x.shape[0], width=x.shape[1], dtype=x.dtype)
        return out

    def add_bias(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        self._c.add_bias(out=out, x=x, y=bias, rows=x.shape[0], width=x.shape[1], dtype=x.dtype, y_dtype=bias.dtype)
        return out

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        x = dense_rows(x)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.scale(**row_words(out, x), factor=factor, dtype=x.dtype, out_dtype=x.dtype)
        return out

    def scale_rows(self, x: torch.Tensor, factors: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = dense_rows(x)
        out = self._calls.empty(x.shape, x.dtype)
        self._c.scale_rows(**row_words(out, x), factors=factors, at=at, dtype=x.dtype)
        return out

    def add_rows(self, x: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, offset: int) -> torch.Tensor:
        x = x.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        self._c.add_rows(
            out=out, x=x, table=table, ids=ids, rows=x.shape[0], width=x.shape[1], offset=offset, dtype=x.dtype,
            table_dtype=table.dtype,
        )  # fmt: skip
        return out

    def token_sums(self, x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
        x = dense_rows(x)
        out = self._calls.empty((count, x.shape[1] + 1), torch.int64)
        lost = self._calls.empty((x.shape[0],), torch.int32)
        self._c.token_sums(
            out=out, lost=lost, x=x, segment=segments, rows=x.shape[0], width=x.shape[1], x_stride=x.stride(0),
            segments=count, dtype=x.dtype,
        )  # fmt: skip
        return out

    def pick(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = x if x[0].is_contiguous() else x.contiguous()
        out = self._calls.empty((at.shape[0], *x.shape[1:]), x.dtype)
        self._c.pick(
            out=out, x=x, at=at, rows=at.shape[0], row_bytes=math.prod(x.shape[1:]) * x.element_size(),
            x_stride=x.stride(0) * x.element_size(),
        )  # fmt: skip
        return out

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        out = self._calls.empty(x.shape, x.dtype)
        self._c.activate(**row_words(out, x), kind=int(kind), dtype=x.dtype)
        return out

    def clip(self, x: torch.Tensor, most: float) -> torch.Tensor:
        out = self._calls.empty(x.shape, x.dtype)
        self._c.clip(**row_words(out, x), cap=most, dtype=x.dtype)
        return out

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        out = self._calls.empty(logits.shape, torch.float32)
        self._c.softcap(**row_words(out, logits), cap=cap, dtype=logits.dtype)
        return out

    def add_norm_linear(self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None) -> Pair:
        return compose.add_norm_linear(self, stream, norm, weight, bias)

    def add_norm_gated(
        self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool
    ) -> Pair:
        return compose.add_norm_gated(self, stream, norm, weight, bias, gelu)

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate_mul(x, gelu=0)

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor:
        return self._gate_mul(x, gelu=1)

    def _gate_mul(self, x: torch.Tensor, gelu: int) -> torch.Tensor:
        x = dense_rows(x)
        rows, width = x.shape[0], x.shape[1] // 2
        out = self._calls.empty((rows, width), x.dtype)
        self._c.gate_mul(out=out, x=x, rows=rows, width=width, x_stride=x.stride(0), dtype=x.dtype, gelu=gelu)
        return out

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        self._c.rope(
            q=q, k=k, positions=positions, cos_sin=cos_sin, tokens=q.shape[0], q_heads=q.shape[1], q_token=q.stride(0),
            q_head=q.stride(1), k_heads=k.shape[1], k_token=k.stride(0), k_head=k.stride(1),
            half=cos_sin.shape[1] // 2, dtype=q.dtype,
        )  # fmt: skip

    def write_kv(self, new: Pair, kv: Pair, slots: torch.Tensor, scales: tuple[float, float] = OWN_SCALES) -> None:
        (k, v), (k_cache, v_cache) = new, kv
        tokens, heads, dim = k.shape
        self._c.write_kv(
            k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots, tokens=tokens, heads=heads, dim=dim,
            block_size=k_cache.shape[2], k_token=k.stride(0), k_head=k.stride(1), v_token=v.stride(0),
            v_head=v.stride(1), k_block=k_cache.stride(0), v_block=v_cache.stride(0), dtype=k.dtype,
            cache_dtype=k_cache.dtype, k_scale=scales[0], v_scale=scales[1],
        )  # fmt: skip

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, batch: AttentionBatch, group: int
    ) -> torch.Tensor:
        return compose.rope_write_kv(self, qkv, positions, rotation, kv, batch, group)

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        k_cache, v_cache = kv
        before, after = shape.seen_around(batch.sees)
        table = batch.block_tables[group]
        out = self._calls.empty(q.shape, q.dtype)
        self._c.attention(
            out=out, q=q, k_cache=k_cache, v_cache=v_cache, rows=batch.rows, query_start=batch.query_start,
            seq_lens=batch.seq_lens, table=table, table_stride=table.stride(0), q_token=q.stride(0),
            q_head=q.stride(1), k_block=k_cache.stride(0), v_block=v_cache.stride(0), num_seqs=batch.num_sequences,
            num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, dim=shape.head_dim,
            block_size=k_cache.shape[2], before=before, after=after, chunk=shape.chunk, dtype=q.dtype,
            cache_dtype=k_cache.dtype, isa=self.packed.isa_index, scale=shape.scale, softcap=shape.softcap,
            bias=shape.bias.table, reach=shape.bias.reach,
        )  # fmt: skip
        return out

    def apply_token_mask(self, logits: torch.Tensor, masks: torch.Tensor, mask_of_line: torch.Tensor) -> None:
        if logits.stride(1) != 1:
            raise ValueError(f"lines of logits {list(logits.shape)} are not contiguous")
        self._c.token_mask(
            logits=logits, masks=masks, mask_of_line=mask_of_line, lines=logits.shape[0], vocab=logits.shape[1],
            logits_stride=logits.stride(0), mask_stride=masks.stride(0), dtype=logits.dtype,
        )  # fmt: skip

    def apply_speech_rules(self, logits: torch.Tensor, own: SpeechLines, written: WrittenTokens) -> None:
        self._c.speech_rules(
            logits=logits, pairs=own.pairs, first_pairs=own.first_pairs, times=own.times, rows=written.rows,
            lengths=written.lengths, prompt_lens=written.prompt_lens, tokens=written.tokens, lines=logits.shape[0],
            vocab=logits.shape[1], logits_stride=logits.stride(0), token_stride=written.tokens.stride(0),
            num_pairs=len(own.pairs), num_first=len(own.first_pairs),
        )  # fmt: skip

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        rows = seeds.shape[0]
        out = self._calls.empty((rows, vocab_size), torch.float32)
        self._c.gumbel(
            out=out, seeds=seeds, positions=positions, seed_stride=seeds.stride(0),
            position_stride=positions.stride(0), rows=rows, vocab=vocab_size,
        )  # fmt: skip
        return out

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        params: DrawParams,
        ids: torch.Tensor = NO_IDS,
    ) -> Pair:
        logits, (lines, vocab) = dense_rows(logits), logits.shape
        tokens, peaks = self._calls.empty((lines,), torch.int32), self._calls.empty((lines,), torch.float32)
        rows, positions = rows.contiguous(), positions.contiguous()
        self._c.draw(
            tokens=tokens, peaks=peaks, logits=logits, rows=rows, positions=positions,
            temperatures=params.temperatures, seeds=params.seeds, random=params.random, ids=ids, lines=lines,
            vocab=vocab, logits_stride=logits.stride(0), temperature_stride=params.temperatures.stride(0),
            seed_stride=params.seeds.stride(0), random_stride=params.random.stride(0), dtype=logits.dtype,
            row_bytes=rows.element_size(), position_bytes=positions.element_size(),
        )  # fmt: skip
        return tokens, peaks


def _or_null(tensor: MaybeTensor) -> torch.Tensor:
    return NO_TENSOR if tensor is None else tensor
