"""CLIP's tower: patches and one vector for the whole picture, learned places, norms before each block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import PreNormLayer
from cadence.models.dims import split_heads
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.interface.model import ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.parameter import empty_parameter
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.vision.packed import packed_context
from cadence.models.vision.patches import PatchLinear, patches
from cadence.models.weight_map import Rule

QUICK = 1.702  # quick_gelu(x) = silu(QUICK * x) / QUICK: folded into the two maps around it
_QUICK_GELU = "quick_gelu"


@dataclass(frozen=True, slots=True)
class VisionDims:
    hidden: int
    intermediate: int
    layers: int  # that are used
    heads: int
    image: int  # pixels, each way
    patch: int  # the same
    activation: str
    eps: float

    @classmethod
    def read(cls, hf: ConfigView, layers: int) -> VisionDims:
        if hf["num_channels"] != 3:
            raise ConfigError(f"num_channels {hf['num_channels']}: pictures have 3", field="num_channels")
        if hf["image_size"] < hf["patch_size"]:
            message = f"image_size {hf['image_size']} is less than patch_size {hf['patch_size']}"
            raise ConfigError(message, field="image_size")
        return cls(
            hidden=hf["hidden_size"],
            intermediate=hf["intermediate_size"],
            layers=layers,
            heads=hf["num_attention_heads"],
            image=hf["image_size"],
            patch=hf["patch_size"],
            activation=hf["hidden_act"],
            eps=hf["layer_norm_eps"],
        )

    @property
    def patches(self) -> int:
        """Of a whole picture."""
        return (self.image // self.patch) ** 2

    @property
    def kv(self) -> LayerKV:
        """Of each layer."""
        return LayerKV(self.heads, split_heads(self.hidden, self.heads), 0)

    def layer(self, build: BuildContext, index: int) -> PreNormLayer:
        dim = split_heads(self.hidden, self.heads)
        spec = AttentionSpec(
            self.hidden, AttentionShape(self.heads, self.heads, dim, dim**-0.5), qkv_bias=True, out_bias=True
        )
        quick = self.activation == _QUICK_GELU
        return PreNormLayer(
            Attention(build, index, spec, NoRotary()),
            PlainMLP(build, self.hidden, self.intermediate, "silu" if quick else self.activation),
            LayerNorm(build, self.hidden, self.eps),
            LayerNorm(build, self.hidden, self.eps),
        )


def layer_rules(source: str, target: str, activation: str) -> tuple[Rule, ...]:
    """Of layers of CLIP and of what is built like it."""
    quick = QUICK if activation == _QUICK_GELU else 1.0
    attn = f"{source}.self_attn"
    return (
        Rule(f"{attn}.q_proj.*", f"{target}.attn.qkv.*", part="q"),
        Rule(f"{attn}.k_proj.*", f"{target}.attn.qkv.*", part="k"),
        Rule(f"{attn}.v_proj.*", f"{target}.attn.qkv.*", part="v"),
        Rule(f"{attn}.out_proj.*", f"{target}.attn.out.*"),
        Rule(f"{source}.layer_norm1.*", f"{target}.attn_norm.*"),
        Rule(f"{source}.layer_norm2.*", f"{target}.mlp_norm.*"),
        Rule(f"{source}.mlp.fc1.*", f"{target}.mlp.up.*", times=quick),
        Rule(f"{source}.mlp.fc2.weight", f"{target}.mlp.down.weight", times=1 / quick),
        Rule(f"{source}.mlp.fc2.bias", f"{target}.mlp.down.bias"),
    )


def clip_rules(source: str, target: str, dims: VisionDims) -> tuple[Rule, ...]:
    return (
        Rule(f"{source}.embeddings.class_embedding", f"{target}.whole"),
        Rule(f"{source}.embeddings.patch_embedding.weight", f"{target}.patch.weight", kernel=(dims.patch, dims.patch)),
        Rule(f"{source}.embeddings.position_embedding.weight", f"{target}.places"),
        Rule(f"{source}.pre_layrnorm.*", f"{target}.norm.*"),
        *layer_rules(f"{source}.encoder.layers.*", f"{target}.layers.*", dims.activation),
    )


class ClipVision(nn.Module):
    """Pictures of one size [3, H, W] float32 each -> of every one its states after some layers, [1 + patches, hidden]:
    first that of the whole."""

    def __init__(self, build: BuildContext, dims: VisionDims) -> None:
        super().__init__()
        self.dims = dims
        self.whole = empty_parameter(build, dims.hidden)
        self.places = empty_parameter(build, 1 + dims.patches, dims.hidden)
        self.patch = PatchLinear(build, 3 * dims.patch**2, dims.hidden)
        self.norm = LayerNorm(build, dims.hidden, dims.eps)
        self.layers = nn.ModuleList(dims.layer(build, index) for index in range(dims.layers))

    def forward(self, pictures: Sequence[torch.Tensor], ops: Ops) -> torch.Tensor:
        """-> [all pictures, 1 + patches, hidden]"""
        count, length = len(pictures), 1 + self.dims.patches
        ctx = packed_context([length] * count, self.dims.kv, len(self.layers), self.whole, ops)
        of_patches = torch.cat([patches(values.to(self.whole.dtype), self.dims.patch) for values in pictures])
        x = self.patch(of_patches, ctx).view(count, -1, self.dims.hidden)
        x = torch.cat([self.whole.expand(count, 1, -1), x], dim=1) + self.places
        x = self.norm(x.flatten(0, 1), ctx)
        residual, inputs = ops.zeros_like(x), NO_INPUTS
        for layer in self.layers:
            x, residual = layer(x, residual, inputs, ctx)
        return ops.add(x, residual).view(count, length, -1)


NO_INPUTS = ModelInputs(ids=torch.empty(0, dtype=torch.int32), rope_positions=torch.empty(0, dtype=torch.int64))
