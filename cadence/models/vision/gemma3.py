"""Gemma 3 with pictures: means over squares of SigLIP's patches, normalised, in the place of soft tokens that see each
other both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

import torch

from cadence.core.errors import ConfigError
from cadence.core.inputs.media import IMAGE
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM
from cadence.models.gemma import gemma_norm
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.media import MediaContent
from cadence.models.layers.linear import Linear
from cadence.models.layers.tower import NoTower, Tower
from cadence.models.vision.clip import VisionDims
from cadence.models.vision.language import language_model, seeing_parts, seeing_weights
from cadence.models.vision.packed import packed_context
from cadence.models.vision.siglip import SIGLIP_SCALE, SiglipVision, siglip_rules, vision_section
from cadence.models.weight_map import Rule

_DEFAULTS = {"mm_tokens_per_image": 256}


class Gemma3Tower(Tower):
    reads = frozenset({IMAGE})
    both_ways = True
    scale = SIGLIP_SCALE

    def __init__(self, build: BuildContext, hf: ConfigView, hidden: int) -> None:
        """hidden: of the language model"""
        super().__init__()
        build = replace(build, ranks=ONE_RANK)
        section = vision_section(hf, "siglip_vision_model")
        self.dims = VisionDims.read(section, section["num_hidden_layers"])
        self.side = isqrt(hf["mm_tokens_per_image"])  # vectors of a line
        self.square = self.dims.image // self.dims.patch // self.side  # patches each way of which a vector is the mean
        if not self.square or self.side**2 != hf["mm_tokens_per_image"]:
            message = f"mm_tokens_per_image {hf['mm_tokens_per_image']} is no square of at most a picture's patches"
            raise ConfigError(message, field="mm_tokens_per_image")
        self.vision = SiglipVision(build, self.dims, last_norm=True)
        self.norm = gemma_norm(build, self.dims.hidden, self.dims.eps)
        self.project = Linear(build, self.dims.hidden, hidden)

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        states = self.vision([self.scale.of(content.values) for content in contents], ops)
        states = self._means(states)
        ctx = packed_context([len(states)], self.dims.kv, 0, states, ops)
        return self.project(self.norm(states, ctx), ctx)

    def _means(self, states: torch.Tensor) -> torch.Tensor:
        """states [N, patches, hidden] -> [N * side * side, hidden]"""
        patches, used = self.dims.image // self.dims.patch, self.side * self.square
        grid = states.view(len(states), patches, patches, -1)[:, :used, :used].float()
        squares = grid.reshape(len(states), self.side, self.square, self.side, self.square, -1)
        return squares.mean(dim=(2, 4)).to(states.dtype).flatten(0, 2)  # summed for each square by itself

    def largest(self, length: int) -> MediaContent:
        pixels = (self.dims.image, self.dims.image, 3)
        values = torch.zeros(pixels, dtype=torch.uint8, device=self.vision.places.device)
        return MediaContent(IMAGE, values, (), self.side**2)


class Gemma3ForConditionalGeneration(DecoderLM):
    """Where the configuration describes no tower, the language model alone: a checkpoint's tower is then left alone."""

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        text = language_model(hf, build)
        tower = _tower(hf, build)
        super().__init__(seeing_parts(text, tower))
        if isinstance(tower, Gemma3Tower):
            _check_window(hf, tower)
            rules = (*siglip_rules("vision_tower", "tower.vision", tower.dims, last_norm=True), *_PROJECTOR_RULES)
            self.weights = seeing_weights(text.weights, rules, _TOWER_PREFIXES, ("**vision_tower.**.head.**",))
        else:
            self.weights = seeing_weights(text.weights, (), (), ("**vision_tower.**", "**multi_modal_projector.**"))


def _check_window(hf: ConfigView, tower: Gemma3Tower) -> None:
    """A picture's tokens see all of it in every layer: both ways a window shows as much only if it is as long."""
    window, length = hf.get("sliding_window"), tower.side**2
    if window and window < length:
        message = f"sliding_window {window} is less than the {length} tokens of a picture (mm_tokens_per_image)"
        raise ConfigError(message, field="sliding_window")


def _tower(hf: ConfigView, build: BuildContext) -> Tower:
    if hf.get("vision_config") is None:
        return NoTower()
    return Gemma3Tower(build, WithDefaults(hf, _DEFAULTS), hf["hidden_size"])


_PROJECTOR_RULES = (
    Rule("multi_modal_projector.mm_input_projection_weight", "tower.project.weight", transpose=True),
    Rule("multi_modal_projector.mm_soft_emb_norm.weight", "tower.norm.weight", add=1.0),
)

_TOWER_PREFIXES = (
    ("vision_tower.", "vision_tower.vision_model."),
    ("vision_tower.", "model.vision_tower."),
    ("vision_tower.", "model.vision_tower.vision_model."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
)
