"""Models in GGUF files: their configuration, their tokenizer, their weights. Other packages import this one alone.

A file is opened again for each of the three, which different processes may ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadence.gguf.config import gguf_config
from cadence.gguf.file import GGML_TYPES, GGUFFile

if TYPE_CHECKING:
    from cadence.gguf.tokenizer import GGUFTokenizer
    from cadence.gguf.weights import GGUFWeights


def read_config(path: Path) -> dict[str, Any]:
    """What `config.json` beside this model's unquantised weights would say."""
    return gguf_config(GGUFFile(path))


def read_tokenizer(path: Path) -> GGUFTokenizer:
    from cadence.gguf.tokenizer import gguf_tokenizer

    return gguf_tokenizer(GGUFFile(path))


def open_weights(path: Path, config: Mapping[str, Any]) -> GGUFWeights:
    """`config`: as `read_config` has it, or what was made of that."""
    from cadence.gguf.weights import GGUFWeights

    return GGUFWeights(GGUFFile(path), config)


def block_size(kind: str) -> tuple[int, int]:
    """Of a type by its name -> (values, bytes) of a block"""
    return next((each.block, each.nbytes) for each in GGML_TYPES.values() if each.name == kind)
