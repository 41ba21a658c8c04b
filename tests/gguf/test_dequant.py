"""Dequantisation equals the `gguf` package's, bit for bit, on every type we read; the same on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

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
    "F16": (0,),
}
READ = [*HALVES_AT, "F32", "BF16"]


def random_blocks(kind: GGMLType, count: int) -> np.ndarray:
    """[count, bytes per block]: any bits, with finite scales."""
    pick = np.random.default_rng(0)
    blocks_np = pick.integers(0, 256, (count, kind.nbytes), dtype=np.uint8)
    for start in HALVES_AT.get(kind.name, ()):
        blocks_np[:, start : start + 2] = pick.normal(size=(count, 1)).astype(np.float16).view(np.uint8)
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
    kind = TYPES["IQ2_XS"]
    with pytest.raises(WeightsError, match=r"'blk\.0\.ffn_up\.weight' has GGUF type IQ2_XS.*Q4_K"):
        dequantize(torch.zeros(kind.nbytes, dtype=torch.uint8), kind, (kind.block,), "blk.0.ffn_up.weight")
