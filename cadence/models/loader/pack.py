"""Matrices of a model in the form the CPU multiplies them in: a GGUF file's own blocks, or quantised while loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from cadence.kernels.cpu.packed import (
    GGUF_TYPES,
    PackedRows,
    PackedWeight,
    pack_f32,
    pack_gguf,
    pack_int4,
    pack_int8,
)
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.linear import Linear
from cadence.models.loader.gguf_weights import GGUFWeights
from cadence.models.weight_map import Rule

Pack = Callable[[torch.Tensor], PackedWeight]  # a float matrix [rows, cols]

METHODS: dict[str, Pack] = {"int8": pack_int8, "int4": pack_int4}


def quantize_model(model: nn.Module, method: str, dtype: torch.dtype) -> None:
    """Replaces the matrices of a loaded model. A matrix two modules share is packed once; what turns tokens into
    vectors and back, where errors show most, keeps at least 8 bits."""
    done: dict[int, PackedRows] = {}
    for module in model.modules():
        if isinstance(module, Linear | Embedding | LMHead) and isinstance(module.weight, nn.Parameter):
            key = id(module.weight)
            if key not in done:
                pack = METHODS[method] if isinstance(module, Linear) else pack_int8
                done[key] = PackedRows([pack(module.weight)], dtype)
            replace_weight(module, done[key])


class GGUFBlocks:
    """Fills matrices with a file's blocks as they are. `assign` asks it for every matrix before it copies."""

    def __init__(self, source: GGUFWeights, dtype: torch.dtype) -> None:
        self._source = source
        self._dtype = dtype

    def fill(self, modules: Sequence[nn.Module], pieces: Sequence[tuple[str, Rule]]) -> bool:
        """Gives all of `modules` one weight, stacked of tensors in order; False where it is none of ours."""
        if not all(isinstance(module, Linear | Embedding | LMHead) for module in modules):
            return False
        packed = PackedRows([self._packed(name, rule) for name, rule in pieces], self._dtype)
        for module in modules:
            replace_weight(module, packed)
        return True

    def _packed(self, name: str, rule: Rule) -> PackedWeight:
        if not rule.transpose and not rule.add:
            found = self._source.blocks(name)
            if found is not None and found[0] in GGUF_TYPES:
                return pack_gguf(found[0], found[1], *self._source.shape(name))
        values = self._source.load(name).float()
        return pack_f32((values.T if rule.transpose else values) + rule.add)


def replace_weight(module: nn.Module, packed: PackedRows) -> None:
    """The parameter goes, unwritten pages and all."""
    del module.weight
    module.weight = packed  # type: ignore[assignment]
