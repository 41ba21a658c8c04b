"""Models in GGUF files: their configuration, their tokenizer, their weights. Other packages import this one alone.

A file is opened again for each of the three, which different processes may ask for; the tokenizer alone reads
the strings of its vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadence.gguf.config import FIRST_POSITION_FIELD as FIRST_POSITION_FIELD
from cadence.gguf.config import POOLING_FIELD as POOLING_FIELD
from cadence.gguf.config import architectures as architectures
from cadence.gguf.config import gguf_config
from cadence.gguf.file import ELSEWHERE, GGML_TYPES, GGUFFile
from cadence.gguf.tower_config import tower_config

if TYPE_CHECKING:
    import torch

    from cadence.gguf.tokenizer import GGUFTokenizer
    from cadence.gguf.tower_weights import WeightsWithTower
    from cadence.gguf.weights import GGUFWeights


def read_config(path: Path, tower: Path | None = None) -> dict[str, Any]:
    """What `config.json` beside this model's unquantised weights would say. tower: in a file of its own, if any"""
    config = gguf_config(GGUFFile(path, with_vocabulary=False))
    return config if tower is None else tower_config(GGUFFile(tower), config)


def read_sizes(path: Path) -> list[tuple[str, int]]:
    """(type, how many numbers) of each tensor."""
    return [(each.type.name, math.prod(each.shape)) for each in GGUFFile(path, with_vocabulary=False).tensors.values()]


def read_tokenizer(path: Path) -> GGUFTokenizer:
    from cadence.gguf.tokenizer import gguf_tokenizer

    return gguf_tokenizer(GGUFFile(path))


def open_weights(path: Path, config: Mapping[str, Any], tower: Path | None = None) -> GGUFWeights | WeightsWithTower:
    """`config`: as `read_config` has it, or what was made of that."""
    from cadence.gguf.tower_weights import TowerWeights, WeightsWithTower
    from cadence.gguf.weights import GGUFWeights

    text = GGUFWeights(GGUFFile(path, with_vocabulary=False), config)
    return text if tower is None else WeightsWithTower(text, TowerWeights(GGUFFile(tower)))


def write_without_tensors(path: Path, to: Path) -> None:
    """A file that says all of a model but what its tensors hold, and that they lie elsewhere."""
    to.write_bytes(GGUFFile(path).header_with_flag(ELSEWHERE))


def values_of_blocks(kind: str, raw: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """raw [bytes] uint8: blocks of a type by its name -> [shape] float32"""
    from cadence.gguf.dequant import dequantize

    return dequantize(raw, next(each for each in GGML_TYPES.values() if each.name == kind), shape, kind)


def parts_of_blocks(kind: str, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """raw [bytes] uint8: blocks of a type by its name -> scales [n, runs], small numbers [n, runs, length], float32,
    whose products the values are; None for types that are made in another way"""
    from cadence.gguf.dequant import parts_of_blocks as parts

    return parts(kind, raw.view(-1, block_size(kind)[1]))


def block_size(kind: str) -> tuple[int, int]:
    """Of a type by its name -> (values, bytes) of a block"""
    return next((each.block, each.nbytes) for each in GGML_TYPES.values() if each.name == kind)


def num_block_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Of a tensor of a type by its name; 0 of types that are not known"""
    found = next((each for each in GGML_TYPES.values() if each.name == kind), None)
    return 0 if found is None else math.prod(shape) // found.block * found.nbytes
