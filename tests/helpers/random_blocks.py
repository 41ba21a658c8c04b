"""Blocks of GGUF types with any bits, but for scales, which are finite."""

from __future__ import annotations

import numpy as np

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


def random_blocks(kind: str, count: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    """[count, bytes per block] uint8. spread: of the float16 numbers"""
    num_bytes = next(form.nbytes for form in GGML_TYPES.values() if form.name == kind)
    pick = np.random.default_rng(seed)
    blocks_np = pick.integers(0, 256, (count, num_bytes), dtype=np.uint8)
    for start in HALVES_AT.get(kind, ()):
        halves = (pick.normal(size=(count, 1)) * spread).astype(np.float16)
        blocks_np[:, start : start + 2] = halves.view(np.uint8)
    if kind == "IQ1_M":  # the exponent of its scale
        blocks_np[:, 55] = blocks_np[:, 55] & 0x8F | 0x30 if spread == 1.0 else blocks_np[:, 55] & 0x8F
    if kind == "MXFP4":
        blocks_np[:, 0] = 110 + blocks_np[:, 0] % 20
    if kind == "F32":
        blocks_np[:] = (pick.normal(size=(count, 1)) * spread).astype(np.float32).view(np.uint8)
    if kind == "BF16":
        blocks_np[:, 1] = blocks_np[:, 1] & 0xBF  # exponents below those of inf and nan
    return blocks_np
