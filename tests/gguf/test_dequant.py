"""Dequantisation equals the `gguf` package's, bit for bit, on every type we read; the same on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cadence.core.block_grids import block_grid
from cadence.core.errors import WeightsError
from cadence.gguf import dequant
from cadence.gguf.dequant import dequantize
from cadence.gguf.file import GGML_TYPES, GGMLType

pytestmark = pytest.mark.device

TYPES = {kind.name: kind for kind in GGML_TYPES.values()}
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
READ = [*HALVES_AT, "IQ1_M", "MXFP4", "NVFP4", "F32", "BF16"]


def random_blocks(kind: GGMLType, count: int) -> np.ndarray:
    """[count, bytes per block]: any bits, with finite scales."""
    pick = np.random.default_rng(0)
    blocks_np = pick.integers(0, 256, (count, kind.nbytes), dtype=np.uint8)
    for start in HALVES_AT.get(kind.name, ()):
        blocks_np[:, start : start + 2] = pick.normal(size=(count, 1)).astype(np.float16).view(np.uint8)
    if kind.name == "IQ1_M":
        blocks_np[:, 55] &= 0xBF  # the exponent of its scale, below those of inf and nan
    if kind.name == "MXFP4":
        blocks_np[:, 0] %= 250  # powers of two whose products are finite
    if kind.name == "F32":
        blocks_np[:] = pick.normal(size=(count, 1)).astype(np.float32).view(np.uint8)
    if kind.name == "BF16":
        blocks_np[:, 1] = blocks_np[:, 1] & 0xBF  # exponents below those of inf and nan
    return blocks_np


@pytest.mark.parametrize("name", READ)
def test_equals_the_gguf_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quants: Any = pytest.importorskip("gguf.quants")
    kind = TYPES[name]
    monkeypatch.setattr(dequant, "_CHUNK_ELEMENTS", 256 * 7)  # several chunks, the last one ragged
    blocks_np = random_blocks(kind, 100)
    ours = dequantize(torch.from_numpy(blocks_np.reshape(-1)), kind, (50, 2 * kind.block), "x")
    theirs = quants.dequantize(blocks_np, quants.GGMLQuantizationType[name]).reshape(50, -1)
    assert ours.dtype == torch.float32
    np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", READ)
def test_gpu_equals_cpu(name: str) -> None:
    kind = TYPES[name]
    raw = torch.from_numpy(random_blocks(kind, 300).reshape(-1))
    on_cpu = dequantize(raw, kind, (300, kind.block), "x")
    assert torch.equal(dequantize(raw.cuda(), kind, (300, kind.block), "x").cpu(), on_cpu)


def test_other_types_are_refused_by_name() -> None:
    kind = TYPES["I16"]
    with pytest.raises(WeightsError, match=r"'blk\.0\.ffn_up\.weight' has GGUF type I16.*Q4_K"):
        dequantize(torch.zeros(kind.nbytes, dtype=torch.uint8), kind, (kind.block,), "blk.0.ffn_up.weight")


def test_every_type_of_the_gguf_package_is_read() -> None:
    quants: Any = pytest.importorskip("gguf.quants")
    assert {kind.name for kind in quants._type_traits} <= set(READ)


def test_grids_are_those_of_the_gguf_package() -> None:
    quants: Any = pytest.importorskip("gguf.quants")
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"):
        theirs = getattr(quants, name)
        theirs.init_grid()
        np.testing.assert_array_equal(block_grid(name), theirs.grid.reshape(theirs.grid_shape))
