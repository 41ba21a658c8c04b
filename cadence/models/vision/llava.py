"""LLaVA 1.5: CLIP's patches after the last layer but one, through two maps, in the place of `<image>` tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cadence.core.errors import ConfigError
from cadence.core.media import IMAGE
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.media import MediaContent
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.tower import Tower
from cadence.models.vision.clip import ClipVision, VisionDims, clip_config, clip_rules
from cadence.models.vision.language import language_model, seeing_parts, seeing_weights
from cadence.models.vision.packed import packed_context
from cadence.models.vision.patches import PixelScale
from cadence.models.weight_map import Rule

_DEFAULTS = {
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
    "multimodal_projector_bias": True,
}

# OpenAI's, with which every CLIP was trained.
CLIP_SCALE = PixelScale(1 / 255, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


class LlavaTower(Tower):
    reads = frozenset({IMAGE})
    scale = CLIP_SCALE

    def __init__(self, build: BuildContext, hf: ConfigView, hidden: int) -> None:
        """hidden: of the language model"""
        super().__init__()
        build = replace(build, ranks=ONE_RANK)
        vision = clip_config(hf)
        self.dims = VisionDims.read(vision, _layers_used(hf["vision_feature_layer"], vision["num_hidden_layers"]))
        self.skips = int(hf["vision_feature_select_strategy"] == "default")  # the vector of the whole picture
        self.vision = ClipVision(build, self.dims)
        self.project = PlainMLP(
            build,
            self.dims.hidden,
            hidden,
            hf["projector_hidden_act"],
            bias=hf["multimodal_projector_bias"],
            out=hidden,
        )

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        states = self.vision([self.scale.of(content.values) for content in contents], ops)
        states = states[:, self.skips :].flatten(0, 1).contiguous()
        ctx = packed_context([len(states)], self.vision.layers[0].attn.kv, 0, states, ops)
        return self.project(states, ctx)

    def largest(self, length: int) -> MediaContent:
        pixels = torch.zeros((self.dims.image, self.dims.image, 3), dtype=torch.uint8, device=self.vision.whole.device)
        return MediaContent(IMAGE, pixels, (), self.dims.patches + 1 - self.skips)


class LlavaForConditionalGeneration(DecoderLM):
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        text, hf = language_model(hf, build), WithDefaults(hf, _DEFAULTS)
        tower = LlavaTower(build, hf, hf["hidden_size"])
        super().__init__(seeing_parts(text, tower))
        rules = (*clip_rules("vision_tower", "tower.vision", tower.dims), *PROJECTOR_RULES)
        self.weights = seeing_weights(text.weights, rules, TOWER_PREFIXES, ("**vision_tower.**",))


PROJECTOR_RULES = (
    Rule("multi_modal_projector.linear_1.*", "tower.project.up.*"),
    Rule("multi_modal_projector.linear_2.*", "tower.project.down.*"),
)

TOWER_PREFIXES = (
    ("vision_tower.", "vision_tower.vision_model."),
    ("vision_tower.", "model.vision_tower."),
    ("vision_tower.", "model.vision_tower.vision_model."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
)


def _layers_used(feature_layer: int, layers: int) -> int:
    """Layers before the states that are taken: -1 are those after the last one."""
    if not isinstance(feature_layer, int) or not -layers <= feature_layer <= layers:
        raise ConfigError(f"vision_feature_layer {feature_layer!r} is not one layer", field="vision_feature_layer")
    return feature_layer if feature_layer >= 0 else layers + 1 + feature_layer
