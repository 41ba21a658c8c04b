"""Idefics3 and SmolVLM: SigLIP's patches at places by their share of the picture, some of them side by side made into
one vector, in the place of `<image>` tokens. A picture that is cut into tiles is several contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cadence.core.errors import ConfigError
from cadence.core.inputs.media import IMAGE
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.media import MediaContent
from cadence.models.layers.linear import Linear
from cadence.models.layers.tower import Tower
from cadence.models.vision.clip import VisionDims
from cadence.models.vision.language import language_model, seeing_parts, seeing_weights
from cadence.models.vision.packed import packed_context
from cadence.models.vision.siglip import SIGLIP_SCALE, SiglipVision, siglip_rules, vision_section
from cadence.models.weight_map import Rule

_DEFAULTS = {"scale_factor": 2}


class IdeficsVision(SiglipVision):
    """Of pictures with any number of patches."""

    def placed(self, height: int, width: int) -> torch.Tensor:
        """A patch has the place that is as far from the picture's corner, as a share of its side."""
        side = self.dims.image // self.dims.patch
        down, across = _shares(height, side), _shares(width, side)
        places = (down[:, None] * side + across).flatten()
        return self.places.index_select(0, places.clamp_max_(side**2 - 1).to(self.places.device))


def _shares(count: int, side: int) -> torch.Tensor:
    """[count] int64: of as many patches in a line, which of the `side` places each has; computed as transformers does,
    in float32, which is not always what real numbers would give."""
    limits = torch.arange(1 / side, 1.0, 1 / side)
    shares = torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))
    return torch.bucketize(shares.clamp_max(1.0 - 1e-6), limits, right=True)


class IdeficsTower(Tower):
    reads = frozenset({IMAGE})
    scale = SIGLIP_SCALE

    def __init__(self, build: BuildContext, hf: ConfigView, hidden: int) -> None:
        """hidden: of the language model"""
        super().__init__()
        build = replace(build, ranks=ONE_RANK)
        section = vision_section(hf, "idefics3_vision")
        self.dims = VisionDims.read(section, section["num_hidden_layers"])
        self.factor = hf["scale_factor"]
        if self.dims.image < self.factor * self.dims.patch:
            message = f"scale_factor {self.factor} is more than the patches of a line"
            raise ConfigError(message, field="scale_factor")
        self.vision = IdeficsVision(build, self.dims, last_norm=True)
        self.project = Linear(build, self.dims.hidden * self.factor**2, hidden)

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        states = self.vision([self.scale.of(content.values) for content in contents], ops)
        states = _side_by_side(states, self.factor)
        ctx = packed_context([len(states)], self.dims.kv, 0, states, ops)
        return self.project(states, ctx)

    def largest(self, length: int) -> MediaContent:
        """A tile: processors make them of the pixels that the tower was trained with."""
        side = self.dims.image // self.dims.patch // self.factor
        pixels = side * self.factor * self.dims.patch
        values = torch.zeros((pixels, pixels, 3), dtype=torch.uint8, device=self.vision.places.device)
        return MediaContent(IMAGE, values, (), side**2)


def _side_by_side(states: torch.Tensor, factor: int) -> torch.Tensor:
    """states [N, side * side, hidden] -> [N * (side / factor)**2, factor**2 * hidden]: a vector for each square of
    factor x factor patches, its lines one after another"""
    count, patches, hidden = states.shape
    side = round(patches**0.5)
    squares = states.view(count, side // factor, factor, side // factor, factor, hidden)
    return squares.permute(0, 1, 3, 2, 4, 5).reshape(-1, factor * factor * hidden)


class Idefics3ForConditionalGeneration(DecoderLM):
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        text = language_model(hf, build)
        tower = IdeficsTower(build, WithDefaults(hf, _DEFAULTS), hf["hidden_size"])
        super().__init__(seeing_parts(text, tower))
        rules = (*siglip_rules("vision_model", "tower.vision", tower.dims, last_norm=True), _PROJECTION)
        self.weights = seeing_weights(text.weights, rules, _TOWER_PREFIXES)


_PROJECTION = Rule("connector.modality_projection.proj.*", "tower.project.*")

_TOWER_PREFIXES = (("vision_model.", "model.vision_model."), ("connector.", "model.connector."))
