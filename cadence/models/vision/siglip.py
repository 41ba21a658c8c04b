"""SigLIP's tower: patches with learned places, norms before each block, one norm after the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.core.inputs.pixel_means import HALF
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.norm import LayerNorm, NoNorm
from cadence.models.layers.parameter import empty_parameter
from cadence.models.vision.clip import NO_INPUTS, VisionDims, layer_rules
from cadence.models.vision.packed import packed_context
from cadence.models.vision.patches import PatchLinear, PixelScale, patches
from cadence.models.weight_map import Rule

SIGLIP_SCALE = PixelScale(1 / 255, HALF, HALF)


class SiglipVision(nn.Module):
    """Pictures of one size [3, H, W] float32 each -> states of their patches."""

    def __init__(self, build: BuildContext, dims: VisionDims, *, last_norm: bool) -> None:
        super().__init__()
        self.dims = dims
        self.places = empty_parameter(build, dims.patches, dims.hidden)
        self.patch = PatchLinear(build, 3 * dims.patch**2, dims.hidden, bias=True)
        self.layers = nn.ModuleList(dims.layer(build, index) for index in range(dims.layers))
        self.norm = LayerNorm(build, dims.hidden, dims.eps) if last_norm else NoNorm()

    def forward(self, pictures: Sequence[torch.Tensor], ops: Ops) -> torch.Tensor:
        """-> [all pictures, patches of each, hidden]"""
        count = len(pictures)
        height, width = (pixels // self.dims.patch for pixels in pictures[0].shape[1:])
        ctx = packed_context([height * width] * count, self.dims.kv, len(self.layers), self.places, ops)
        of_patches = torch.cat([patches(values.to(self.places.dtype), self.dims.patch) for values in pictures])
        x = self.patch(of_patches, ctx).view(count, -1, self.dims.hidden) + self.placed(height, width)
        x = x.flatten(0, 1)
        residual, inputs = ops.zeros_like(x), NO_INPUTS
        for layer in self.layers:
            x, residual = layer(x, residual, inputs, ctx)
        return self.norm.add(x, residual, ctx)[0].view(count, height * width, -1)

    def placed(self, height: int, width: int) -> torch.Tensor:
        """[height * width, hidden], what patches of a picture of so many get for where they are"""
        return self.places


def siglip_rules(source: str, target: str, dims: VisionDims, *, last_norm: bool) -> tuple[Rule, ...]:
    patch, kernel = f"{source}.embeddings.patch_embedding", (dims.patch, dims.patch)
    norm = (Rule(f"{source}.post_layernorm.*", f"{target}.norm.*"),) if last_norm else ()
    return (
        Rule(f"{patch}.weight", f"{target}.patch.weight", kernel=kernel),
        Rule(f"{patch}.bias", f"{target}.patch.bias"),
        Rule(f"{source}.embeddings.position_embedding.weight", f"{target}.places"),
        *layer_rules(f"{source}.encoder.layers.*", f"{target}.layers.*", dims.activation),
        *norm,
    )


def vision_section(hf: ConfigView, kind: str) -> dict[str, Any]:
    """What describes a tower, which has to be of this `model_type`."""
    section: dict[str, Any] = hf["vision_config"]
    if section["model_type"] != kind:
        raise ConfigError(f"a tower of type {section['model_type']!r} is not supported", field="vision_config")
    return section
