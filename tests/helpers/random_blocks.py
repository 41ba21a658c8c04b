"""Blocks of GGUF types with any bits, but for scales, which are finite."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from cadence.gguf.file import GGML_TYPES

HALVES_AT = {  # bytes of a block that hold float16 numbers
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "F16": (0,),
}
READ = [*HALVES_AT, "IQ1_M", "MXFP4", "NVFP4", "F32", "BF16"]  # every type that is read


def random_blocks(kind: str, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
    """[count, bytes per block] uint8"""
    num_bytes = next(form.nbytes for form in GGML_TYPES.values() if form.name == kind)
    pick = np.random.default_rng(seed)
    blocks_np = pick.integers(0, 256, (count, num_bytes), dtype=np.uint8)
    for start in HALVES_AT.get(kind, ()):
        _set_half(blocks_np, start, pick.normal(size=count))
    if kind == "IQ1_M":
        _set_pieces(blocks_np, pick.normal(size=count))
    if kind == "MXFP4":
        blocks_np[:, 0] = 110 + blocks_np[:, 0] % 20
    if kind == "F32":
        blocks_np[:] = pick.normal(size=(count, 1)).astype(np.float32).view(np.uint8)
    if kind == "BF16":
        blocks_np[:, 1] = blocks_np[:, 1] & 0xBF  # exponents below those of inf and nan
    return blocks_np


def tame_blocks(kind: str, count: int, spread: float, seed: int | np.random.Generator = 0) -> np.ndarray:
    """The same with values around zero, of about this spread: weights of a model."""
    blocks_np = random_blocks(kind, count, seed)
    if kind == "MXFP4":
        blocks_np[:, 0] = 127 + round(np.log2(spread / 2.6))
        return blocks_np
    if kind == "NVFP4":
        blocks_np[:, :4] = 0x38 + 8 * round(np.log2(spread / 2.6))  # 1.0 is 0x38
        return blocks_np
    if kind == "IQ1_M":
        _set_pieces(blocks_np, 1.0)
        _set_pieces(blocks_np, spread / _values(kind, blocks_np).std())
        return blocks_np
    places = HALVES_AT[kind]
    _set_halves(blocks_np, places, (1.0, 0.0))
    shift = 0.0
    if len(places) == 2:
        mean = _values(kind, blocks_np).mean()
        _set_halves(blocks_np, places, (0.0, 1.0))
        shift = -mean / _values(kind, blocks_np).mean()
        _set_halves(blocks_np, places, (1.0, shift))
    scale = spread / _values(kind, blocks_np).std()
    _set_halves(blocks_np, places, (scale, scale * shift))
    return blocks_np


def _values(kind: str, blocks_np: np.ndarray) -> np.ndarray:
    return dequantize(blocks_np, GGMLQuantizationType[kind])


def _set_halves(blocks_np: np.ndarray, places: tuple[int, ...], halves: tuple[float, float]) -> None:
    for start, each in zip(places, halves, strict=False):
        _set_half(blocks_np, start, each)


def _set_half(blocks_np: np.ndarray, start: int, value: float | np.ndarray) -> None:
    halves = np.broadcast_to(np.asarray(value, np.float16), len(blocks_np))
    blocks_np[:, start : start + 2] = np.ascontiguousarray(halves)[:, None].view(np.uint8)


def _set_pieces(blocks_np: np.ndarray, value: float | np.ndarray) -> None:
    """The scale of IQ1_M: four bits on top of each of its last four words."""
    bits = np.broadcast_to(np.asarray(value, np.float16), len(blocks_np)).copy().view(np.uint16)
    for piece in range(4):
        at = 49 + 2 * piece
        blocks_np[:, at] = (blocks_np[:, at] & 15) | (((bits >> (4 * piece)) & 15) << 4).astype(np.uint8)
