"""LLaVA-NeXT: a picture as a whole, then again in tiles, whose vectors are put together line by line, each line with
one vector more at its end. What lies outside the picture is left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.core.errors import ConfigError
from cadence.core.inputs.media import IMAGE
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.media import MediaContent
from cadence.models.layers.parameter import empty_parameter
from cadence.models.vision.language import language_model, seeing_parts, seeing_weights
from cadence.models.vision.llava import LLAVA_DEFAULTS, TOWER_PREFIXES, UNUSED, LlavaTower
from cadence.models.weight_map import Rule


class LlavaNextTower(LlavaTower):
    """Contents have values [1 + rows * columns, image, image, 3], first the whole picture, and the grid
    (rows, columns, top, left): of tiles, and of vectors to leave out on each side of a line, or above and below."""

    def __init__(self, build: BuildContext, hf: ConfigView, hidden: int) -> None:
        super().__init__(build, hf, hidden)
        self.newline = empty_parameter(build, hidden)
        self._side = self.dims.image // self.dims.patch
        if self.length != self._side**2:
            message = "vectors that are no patches' cannot be put together; 'default' leaves them out"
            raise ConfigError(message, field="vision_feature_select_strategy")
        self._grids = sorted({(height // self.dims.image, width // self.dims.image) for height, width in _sizes(hf)})

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        tiles = [self.scale.of(tile) for content in contents for tile in content.values]
        vectors = self.projected(tiles, ops).split([len(content.values) for content in contents])
        return torch.cat([self._packed(each, content.grid) for each, content in zip(vectors, contents, strict=True)])

    def _packed(self, vectors: torch.Tensor, grid: tuple[int, ...]) -> torch.Tensor:
        """vectors [1 + rows * columns, side * side, H] -> [length, H]"""
        rows, columns, top, left = grid
        height, width = rows * self._side, columns * self._side
        tiles = vectors[1:].view(rows, columns, self._side, self._side, -1).transpose(1, 2)
        lines = tiles.reshape(height, width, -1)[top : height - top, left : width - left]
        ended = torch.cat([lines, self.newline.expand(len(lines), 1, -1)], dim=1)
        return torch.cat([vectors[0], ended.flatten(0, 1)])

    def largest(self, length: int) -> MediaContent:
        lengths = {self._length(*grid): grid for grid in self._grids}
        most = max(lengths)
        found = min((each for each in lengths if each >= length), default=most)
        rows, columns = lengths[found]
        values = self.blank(1 + rows * columns, self.dims.image, self.dims.image, 3)
        return MediaContent(IMAGE, values, (rows, columns, 0, 0), found)

    def _length(self, rows: int, columns: int) -> int:
        return self._side**2 + rows * self._side * (columns * self._side + 1)


def _sizes(hf: ConfigView) -> list[list[int]]:
    """Heights and widths that are cut into tiles."""
    sizes: list[list[int]] = hf["image_grid_pinpoints"]
    if not sizes or any(len(size) != 2 for size in sizes):
        raise ConfigError("image_grid_pinpoints must name heights and widths", field="image_grid_pinpoints")
    return sizes


class LlavaNextForConditionalGeneration(DecoderLM):
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        text = language_model(hf, build)
        tower = LlavaNextTower(build, WithDefaults(hf, LLAVA_DEFAULTS), hf["hidden_size"])
        super().__init__(seeing_parts(text, tower))
        rules = (*tower.rules(), Rule("image_newline", "tower.newline"))
        prefixes = (*TOWER_PREFIXES, ("image_newline", "model.image_newline"))
        self.weights = seeing_weights(text.weights, rules, prefixes, UNUSED)
