"""Every op in plain torch: runs anywhere, and is what the other implementations are held to."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.interface.matrix import Norm
from cadence.kernels.interface.ops import NO_IDS, OWN_SCALES, DrawParams, Pair, Rotation, Triple
from cadence.kernels.reference import compose
from cadence.kernels.reference.attention import paged_attention
from cadence.kernels.reference.experts import ReferenceExpertOps
from cadence.kernels.reference.gumbel import gumbel_noise
from cadence.kernels.reference.kv_rows import QUANTISED, pack_rows
from cadence.kernels.reference.lora import ReferenceLoraOps
from cadence.kernels.reference.rope import ReferenceRopeOps
from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.kernels.reference.states import ReferenceStateOps
from cadence.kernels.reference.suffix import ReferenceSuffixOps
from cadence.kernels.reference.torch_ops import TorchOps


class ReferenceOps(TorchOps):
    name = "reference"

    def __init__(self) -> None:
        self.rows = ReferenceRowOps()
        self.suffix = ReferenceSuffixOps()
        self.lora = ReferenceLoraOps()
        self.axes = ReferenceRopeOps()
        self.experts = ReferenceExpertOps()
        self.states = ReferenceStateOps()

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def linear_terms(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.linear(x, weight, bias)

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (normed * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def add_norm_linear(self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None) -> Pair:
        return compose.add_norm_linear(self, stream, norm, weight, bias)

    def add_norm_gated(
        self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool
    ) -> Pair:
        return compose.add_norm_gated(self, stream, norm, weight, bias, gelu)

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(x.dtype)

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (F.gelu(gate, approximate="tanh") * up).to(x.dtype)

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        half = cos_sin.shape[1] // 2
        cos, sin = cos_sin[positions].float()[:, None, :].split(half, dim=-1)
        for heads in (q, k):
            first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
            rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
            heads[..., : 2 * half] = rotated.to(heads.dtype)

    def write_kv(self, new: Pair, kv: Pair, slots: torch.Tensor, scales: tuple[float, float] = OWN_SCALES) -> None:
        block_size = kv[0].shape[2]
        block, offset = slots // block_size, slots % block_size
        for rows, cache, scale in zip(new, kv, scales, strict=True):
            if cache.dtype in QUANTISED:  # as bytes: torch does not put float8 into places
                cache.view(torch.uint8)[block, :, offset] = pack_rows(rows, cache.dtype, scale).view(torch.uint8)
            else:
                cache[block, :, offset] = rows.to(cache.dtype)

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, batch: AttentionBatch, group: int
    ) -> torch.Tensor:
        return compose.rope_write_kv(self, qkv, positions, rotation, kv, batch, group)

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        return paged_attention(q, kv, batch, group, shape)

    def apply_token_mask(self, logits: torch.Tensor, masks: torch.Tensor, mask_of_line: torch.Tensor) -> None:
        (lines,) = (mask_of_line >= 0).nonzero(as_tuple=True)
        words = masks[mask_of_line[lines].long()]
        bits = words[:, :, None] >> torch.arange(32, device=words.device, dtype=torch.int32) & 1
        barred = bits.flatten(1)[:, : logits.shape[1]] == 0
        logits[lines] = logits[lines].masked_fill(barred & logits[lines].isfinite(), float("-inf"))

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return gumbel_noise(seeds, positions, vocab_size)

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        params: DrawParams,
        ids: torch.Tensor = NO_IDS,
    ) -> Pair:
        return compose.draw(self, logits, rows, positions, params, ids)
