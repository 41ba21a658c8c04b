"""LLaVA 1.5: CLIP's or SigLIP's patches, mostly after the last layer but one, through two maps, in the place of
`<image>` tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cadence.core.errors import ConfigError
from cadence.core.inputs.media import IMAGE
from cadence.core.inputs.pixel_means import OPENAI_MEAN, OPENAI_STD
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.media import MediaContent
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.tower import Tower
from cadence.models.vision.clip import ClipVision, VisionDims, clip_rules
from cadence.models.vision.language import language_model, seeing_parts, seeing_weights
from cadence.models.vision.packed import packed_context
from cadence.models.vision.patches import PixelScale
from cadence.models.vision.siglip import SIGLIP_SCALE, SiglipVision, siglip_rules
from cadence.models.weight_map import Rule

LLAVA_DEFAULTS = {
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
    "multimodal_projector_bias": True,
}

CLIP_SCALE = PixelScale(1 / 255, OPENAI_MEAN, OPENAI_STD)

_SCALES = {"clip_vision_model": CLIP_SCALE, "siglip_vision_model": SIGLIP_SCALE}


class LlavaTower(Tower):
    reads = frozenset({IMAGE})

    def __init__(self, build: BuildContext, hf: ConfigView, hidden: int) -> None:
        """hidden: of the language model"""
        super().__init__()
        build = replace(build, ranks=ONE_RANK)
        section, strategy = hf["vision_config"], hf["vision_feature_select_strategy"]
        kind = section["model_type"]
        if kind not in _SCALES:
            raise ConfigError(f"a tower of type {kind!r} is not supported", field="vision_config")
        if strategy not in ("default", "full"):
            message = f"vision_feature_select_strategy {strategy!r} is neither 'default' nor 'full'"
            raise ConfigError(message, field="vision_feature_select_strategy")
        self.dims = VisionDims.read(section, _layers_used(hf["vision_feature_layer"], section["num_hidden_layers"]))
        self.scale = _SCALES[kind]
        self.skips = int(
            strategy == "default"
        )  # of a picture's states, the first: CLIP has one of the whole picture there
        clip = kind == "clip_vision_model"
        self.length = self.dims.patches + clip - self.skips  # vectors of a picture
        self.vision = ClipVision(build, self.dims) if clip else SiglipVision(build, self.dims, last_norm=False)
        activation, bias = hf["projector_hidden_act"], hf["multimodal_projector_bias"]
        self.project = PlainMLP(build, self.dims.hidden, hidden, activation, bias=bias, out=hidden)

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        return self.projected([self.scale.of(content.values) for content in contents], ops).flatten(0, 1)

    def projected(self, pictures: Sequence[torch.Tensor], ops: Ops) -> torch.Tensor:
        """pictures [3, image, image] float32 each -> [all pictures, length, H]"""
        states = self.vision(pictures, ops)[:, self.skips :].flatten(0, 1).contiguous()
        ctx = packed_context([len(states)], self.dims.kv, 0, states, ops)
        return self.project(states, ctx).view(len(pictures), self.length, -1)

    def largest(self, length: int) -> MediaContent:
        return MediaContent(IMAGE, self.blank(self.dims.image, self.dims.image, 3), (), self.length)

    def blank(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8, device=self.vision.places.device)

    def rules(self) -> tuple[Rule, ...]:
        source, target = "vision_tower", "tower.vision"
        if isinstance(self.vision, ClipVision):
            return (*clip_rules(source, target, self.dims), *_PROJECTOR_RULES)
        return (*siglip_rules(source, target, self.dims, last_norm=False), *_PROJECTOR_RULES)


class LlavaForConditionalGeneration(DecoderLM):
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        text = language_model(hf, build)
        tower = LlavaTower(build, WithDefaults(hf, LLAVA_DEFAULTS), hf["hidden_size"])
        super().__init__(seeing_parts(text, tower))
        self.weights = seeing_weights(text.weights, tower.rules(), TOWER_PREFIXES, UNUSED)


_PROJECTOR_RULES = (
    Rule("multi_modal_projector.linear_1.*", "tower.project.up.*"),
    Rule("multi_modal_projector.linear_2.*", "tower.project.down.*"),
)

TOWER_PREFIXES = (
    ("vision_tower.", "vision_tower.vision_model."),
    ("vision_tower.", "model.vision_tower."),
    ("vision_tower.", "model.vision_tower.vision_model."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
)

UNUSED = ("**vision_tower.**",)  # what comes after the layers that are used


def _layers_used(feature_layer: int, layers: int) -> int:
    """Layers before the states that are taken: -1 are those after the last one."""
    if not isinstance(feature_layer, int) or not -layers <= feature_layer <= layers:
        raise ConfigError(f"vision_feature_layer {feature_layer!r} is not one layer", field="vision_feature_layer")
    return feature_layer if feature_layer >= 0 else layers + 1 + feature_layer
