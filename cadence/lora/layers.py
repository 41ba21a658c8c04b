"""A model's own weights and norms with adapters around them. In a batch without adapters they are what they were."""

from __future__ import annotations

import torch
from torch import nn

from cadence.kernels.interface.lora_ops import LoraMap
from cadence.lora.targets import Place
from cadence.models.interface.lora_batch import LoraBatch
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.weight import RMSScale, Stream, Weight


class Adaptation:
    """What lies in the slots for one module. Once something was there, its ops are part of every forward with
    adapters."""

    def __init__(self, lora: LoraMap, place: Place) -> None:
        self.lora = lora
        self._place = place
        self.changes = False  # some adapter had a low-rank change, a bias or a magnitude for it
        self.replaces = False  # some adapter had a matrix in place of its own

    def applies(self, ctx: ForwardContext) -> bool:
        return ctx.lora.active and (self.changes or self.replaces)

    def slots(self, batch: LoraBatch) -> torch.Tensor:
        """Of the lines that reach the module, [T] int32."""
        if self._place is Place.TOKENS:
            return batch.tokens
        return batch.wanted if self._place is Place.WANTED else batch.lines

    def add(self, y: torch.Tensor, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """y [T, out] of x [T, in], changed in place."""
        if self.changes:
            ctx.ops.lora.add(y, x, self.lora, self.slots(ctx.lora))
        return y


class AdaptedWeight(Weight):
    """A product with adapters after it; norm, product and gate are taken apart where one applies."""

    def __init__(self, base: Weight, adaptation: Adaptation) -> None:
        self.base = base
        self.adaptation = adaptation
        self.rows, self.cols = base.rows, base.cols

    @property
    def innermost(self) -> Weight:
        return self.base.innermost

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        y = self.base.linear(x, bias, ctx)
        return self.adaptation.add(y, x, ctx) if self.adaptation.applies(ctx) else y

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        if self.adaptation.applies(ctx):
            return self.linear(x, bias, ctx)
        return self.base.linear_terms(x, bias, ctx)

    def after_norm(self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, ctx: ForwardContext) -> Stream:
        if self.adaptation.applies(ctx):
            return super().after_norm(stream, norm, bias, ctx)
        return self.base.after_norm(stream, norm, bias, ctx)

    def gated_after_norm(
        self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext
    ) -> Stream:
        if self.adaptation.applies(ctx):
            return super().gated_after_norm(stream, norm, bias, gelu, ctx)
        return self.base.gated_after_norm(stream, norm, bias, gelu, ctx)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        y = self.base.logits(x, ctx)
        if not self.adaptation.applies(ctx):
            return y
        if self.adaptation.replaces:
            ctx.ops.lora.saved_logits(y, x, self.adaptation.lora, self.adaptation.slots(ctx.lora))
        return self.adaptation.add(y, x, ctx)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        y = self.base.lookup(ids, scale, ctx)
        if not self.adaptation.applies(ctx):
            return y
        lora, slots = self.adaptation.lora, self.adaptation.slots(ctx.lora)
        if self.adaptation.replaces:
            ctx.ops.lora.saved_rows(y, ids, lora, slots, scale)
        if self.adaptation.changes:
            ctx.ops.lora.add_embedding(y, ids, lora, slots, scale)
        return y

    def values_of(self, first: int, count: int) -> torch.Tensor:
        return self.base.values_of(first, count)


class AdaptedNorm(LayerNorm):
    """A layer norm whose bias adapters may change. Its parameters keep their names: they may be loaded again."""

    def __init__(self, base: LayerNorm, adaptation: Adaptation) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias, self.eps = base.weight, base.bias, base.eps
        self.adaptation = adaptation

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._changed(super().forward(x, ctx), ctx)

    def add(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> Stream:
        normed, total = super().add(x, residual, ctx)
        return self._changed(normed, ctx), total

    def _changed(self, y: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.adaptation.add(y, y, ctx) if self.adaptation.applies(ctx) else y
