"""Ops that torch does well enough on any device: the reference and the GPU share them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cadence.core.errors import ConfigError
from cadence.kernels.interface.matrix import MatrixPacker
from cadence.kernels.interface.ops import SUM_MOST, SUM_SCALE, Activation, MaybeTensor, Pair
from cadence.kernels.interface.speech_lines import SpeechLines, WrittenTokens
from cadence.kernels.reference.speech_rules import apply_speech_rules


class TorchOps:
    packs = False

    def packer(self, method: str, dtype: torch.dtype, device: torch.device) -> MatrixPacker | None:
        if method in ("fp8", "int8", "int4"):
            raise ConfigError(f"quantization={method} needs kernels of its own, not plain torch", field="quantization")
        return None

    def embed(self, ids: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        vectors = F.embedding(ids, weight)
        return vectors if scale == 1.0 else vectors * scale

    def zeros_like(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    def layer_norm(self, x: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)

    def head_layer_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        normed = F.layer_norm(x.float(), (x.shape[-1],), None, None, eps)
        return (normed * weight.float()).to(x.dtype).contiguous()

    def add_layer_norm(self, stream: Pair, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> Pair:
        total = stream[0] + stream[1]
        return self.layer_norm(total, weight, bias, eps), total

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def add_bias(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (x + bias).to(x.dtype)

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def scale_rows(self, x: torch.Tensor, factors: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return (x.float() * factors.index_select(0, at)[:, None]).to(x.dtype)

    def add_rows(self, x: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, offset: int) -> torch.Tensor:
        return x + F.embedding(ids + offset, table)

    def token_sums(self, x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
        is_lost = ~torch.linalg.vector_norm(x, torch.inf, dim=1, keepdim=True).isfinite()
        kept = x.masked_fill(is_lost, 0.0)
        multiples = kept.double().mul_(SUM_SCALE).round_().clamp_(-SUM_MOST, SUM_MOST).to(torch.int64)
        sums = torch.zeros((count, x.shape[1] + 1), dtype=torch.int64, device=x.device)
        sums[:, :-1].index_add_(0, segments, multiples)
        sums[:, -1:].index_add_(0, segments, is_lost.to(torch.int64))
        return sums

    def apply_speech_rules(self, logits: torch.Tensor, own: SpeechLines, written: WrittenTokens) -> None:
        apply_speech_rules(logits, own, written)

    def pick(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, at)

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        if kind is Activation.RELU:
            return F.relu(x)
        if kind is Activation.SILU:
            return F.silu(x)
        return F.gelu(x, approximate="tanh" if kind is Activation.GELU_TANH else "none")

    def clip(self, x: torch.Tensor, most: float) -> torch.Tensor:
        return x.clamp(-most, most)

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.tanh(logits.float() / cap)
