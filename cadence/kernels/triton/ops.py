"""The ops on Triton kernels. Nothing here waits for the device; grids come from sizes the host knows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.interface.matrix import MatrixPacker, Norm
from cadence.kernels.interface.ops import NO_IDS, OWN_SCALES, DrawParams, Pair, Rotation, Triple
from cadence.kernels.reference import compose
from cadence.kernels.reference.torch_ops import TorchOps
from cadence.kernels.triton.attention.attention import PagedAttention
from cadence.kernels.triton.attention.heads import Places, rotate_and_store
from cadence.kernels.triton.common import private
from cadence.kernels.triton.experts.experts import TritonExpertOps
from cadence.kernels.triton.linear import elementwise
from cadence.kernels.triton.linear.few_rows import choose_few, choose_split, linear_few
from cadence.kernels.triton.linear.gemv import Entry, few_tokens, suits
from cadence.kernels.triton.linear.lora import TritonLoraOps
from cadence.kernels.triton.linear.matmul import fixed_linear
from cadence.kernels.triton.linear.skinny import MOST_ROWS, choose_skinny, linear_skinny
from cadence.kernels.triton.lowbit.packer import GpuPacker
from cadence.kernels.triton.rows import gumbel
from cadence.kernels.triton.rows.draw import draw
from cadence.kernels.triton.rows.rope import TritonRopeOps
from cadence.kernels.triton.rows.rows import TritonRowOps
from cadence.kernels.triton.rows.suffix import TritonSuffixOps
from cadence.kernels.triton.rows.token_mask import apply_token_mask
from cadence.kernels.triton.states.states import TritonStateOps

_GATE_BLOCK = 1024
_NORM_ELEMENTS = 2048  # elements one program of rms_norm takes at least, in whole rows
_QUADS = 256
_FEW_ROWS_BYTES = 160 << 10  # of shared memory: what the tiles of `few_rows` need


class TritonOps(TorchOps):
    """With `deterministic`, a row's bits do not depend on the rows beside it, nor on how many there are."""

    name = "triton"

    def __init__(self, deterministic: bool = False, packs: bool = False) -> None:
        """packs: matrices are of few bits"""
        self.packs = packs
        self.rows = TritonRowOps()
        self.suffix = TritonSuffixOps()
        self.axes = TritonRopeOps()
        self._deterministic = deterministic
        self._pdl = _supports_pdl()
        self.states = TritonStateOps(deterministic, self._pdl)
        self.lora = TritonLoraOps(deterministic, self._pdl)
        self.experts = TritonExpertOps(self.linear, (self.silu_mul, self.gelu_tanh_mul))
        self._attention = PagedAttention(deterministic, self._pdl)
        self._memory = private.shared_memory() if self._pdl else 0  # bytes that a program may have
        self._few_rows = not deterministic and self._memory >= _FEW_ROWS_BYTES

    def packer(self, method: str, dtype: torch.dtype, device: torch.device) -> MatrixPacker | None:
        return GpuPacker(self, method, dtype, device, (self._deterministic, self._pdl)) if self.packs else None

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._deterministic:
            return fixed_linear(x, weight, bias, self._pdl, self._memory)
        if suits(x.shape[0], weight):
            return few_tokens(x, weight, bias, pdl=self._pdl)[0]
        skinny = choose_skinny(x.shape[0], weight, gated=False) if self._few_rows else None
        if skinny is not None:
            return linear_skinny(x, weight, bias, skinny, "", self._pdl)
        tile = choose_few(x.shape[0], weight, gated=False) if self._few_rows else None
        return F.linear(x, weight, bias) if tile is None else linear_few(x, weight, bias, tile, "", self._pdl)

    def linear_terms(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        tile = choose_split(x.shape[0], weight) if self._few_rows and x.shape[0] > MOST_ROWS else None
        return self.linear(x, weight, bias) if tile is None else linear_few(x, weight, bias, tile, "", self._pdl)

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.linear(x, weight, None)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width = x.shape[-1]
        rows3 = x if x.dim() == 3 and x.stride(2) == 1 else x.reshape(1, -1, width)  # [outer, inner, width]
        outer, inner, _ = rows3.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        padded = triton.next_power_of_2(width)
        per_program = max(_NORM_ELEMENTS // padded, 1)
        rows = outer * inner
        elementwise.rms_norm[(triton.cdiv(rows, per_program),)](
            out, rows3, weight, rows, inner, rows3.stride(0), rows3.stride(1), eps,
            WIDTH=width, WIDTH_PAD=padded, ROWS=per_program, num_warps=_warps(padded),
        )  # fmt: skip
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        padded = triton.next_power_of_2(width)
        elementwise.add_rms_norm[(residual.numel() // width,)](
            out, total, x, residual, weight, eps, residual.numel(),
            WIDTH=width, WIDTH_PAD=padded, TERMS=x.shape[0] if x.dim() == 3 else 1, PDL=self._pdl,
            num_warps=_warps(padded), launch_pdl=self._pdl,
        )  # fmt: skip
        return out, total

    def add_norm_linear(self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None) -> Pair:
        if not self._deterministic and suits(stream[1].shape[0], weight):
            entry = Entry(residual=stream[1], norm_weight=norm[0], eps=norm[1])
            return few_tokens(stream[0], weight, bias, entry, pdl=self._pdl)
        return compose.add_norm_linear(self, stream, norm, weight, bias)

    def add_norm_gated(
        self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool
    ) -> Pair:
        if not self._deterministic and suits(stream[1].shape[0], weight):
            entry = Entry(residual=stream[1], norm_weight=norm[0], eps=norm[1])
            return few_tokens(stream[0], weight, bias, entry, gate="gelu" if gelu else "silu", pdl=self._pdl)
        if self._few_rows:
            return self._gated_few(stream, norm, weight, bias, gelu)
        return compose.add_norm_gated(self, stream, norm, weight, bias, gelu)

    def _gated_few(self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool) -> Pair:
        """The same, for what no kernel with the norm inside suits."""
        rows, gate = stream[1].shape[0], "gelu" if gelu else "silu"
        skinny = choose_skinny(rows, weight, gated=True)
        few = choose_few(rows, weight, gated=True)
        if skinny is None and few is None:
            return compose.add_norm_gated(self, stream, norm, weight, bias, gelu)
        normed, total = self.add_rms_norm(*stream, *norm)
        if skinny is not None:
            return linear_skinny(normed, weight, bias, skinny, gate, self._pdl), total
        assert few is not None
        return linear_few(normed, weight, bias, few, gate, self._pdl), total

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        return _gate_mul(x, gelu=False, pdl=self._pdl)

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor:
        return _gate_mul(x, gelu=True, pdl=self._pdl)

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        half = cos_sin.shape[1] // 2
        elementwise.rope[(q.shape[0], 2)](
            q, k, positions, cos_sin, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            Q_HEADS=q.shape[1], K_HEADS=k.shape[1],
            Q_PAD=triton.next_power_of_2(q.shape[1]), K_PAD=triton.next_power_of_2(k.shape[1]),
            HALF=half, HALF_PAD=triton.next_power_of_2(half),
        )  # fmt: skip

    def write_kv(self, new: Pair, kv: Pair, slots: torch.Tensor, scales: tuple[float, float] = OWN_SCALES) -> None:
        (k, v), (k_cache, v_cache) = new, kv
        tokens, heads, dim = k.shape
        elementwise.write_kv[(tokens,)](
            k, v, k_cache, v_cache, slots,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_cache.stride(0), v_cache.stride(0),
            *scales, HEADS=heads, HEADS_PAD=triton.next_power_of_2(heads),
            DIM=dim, DIM_PAD=triton.next_power_of_2(dim), BLOCK_SIZE=k_cache.shape[2],
        )  # fmt: skip

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, batch: AttentionBatch, group: int
    ) -> torch.Tensor:
        return rotate_and_store(qkv, positions, rotation, kv, Places.of(batch, group), self._deterministic, self._pdl)

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        return self._attention.run(q, kv, batch, group, shape)

    def apply_token_mask(self, logits: torch.Tensor, masks: torch.Tensor, mask_of_line: torch.Tensor) -> None:
        apply_token_mask(logits, masks, mask_of_line)

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        lines = seeds.shape[0]
        out = torch.empty((lines, vocab_size), dtype=torch.float32, device=seeds.device)
        gumbel.gumbel_noise[(lines, triton.cdiv(vocab_size, 4 * _QUADS))](
            out, seeds, positions, seeds.stride(0), positions.stride(0), VOCAB=vocab_size, QUADS=_QUADS
        )
        return out

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        params: DrawParams,
        ids: torch.Tensor = NO_IDS,
    ) -> Pair:
        return draw(logits, rows, positions, params, ids, self._pdl)


def _supports_pdl() -> bool:
    """Whether a kernel can begin before the one ahead of it has ended (Hopper and later, not in the interpreter)."""
    if private.is_interpreted():
        return False
    backend, capability = private.target()
    return backend == "cuda" and capability >= 90


def _gate_mul(x: torch.Tensor, gelu: bool, pdl: bool) -> torch.Tensor:
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    elementwise.gate_mul[(rows, triton.cdiv(width, _GATE_BLOCK))](
        out, x, x.stride(0), WIDTH=width, BLOCK=_GATE_BLOCK, GELU=gelu, PDL=pdl, launch_pdl=pdl
    )
    return out


def _warps(padded_width: int) -> int:
    return 4 if padded_width <= 2048 else 8 if padded_width <= 8192 else 16
