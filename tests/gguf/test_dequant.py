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
from cadence.gguf.file import GGML_TYPES
from tests.helpers.random_blocks import READ, random_blocks

pytestmark = pytest.mark.device

TYPES = {kind.name: kind for kind in GGML_TYPES.values()}


@pytest.mark.parametrize("name", READ)
def test_equals_the_gguf_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quants: Any = pytest.importorskip("gguf.quants")
    kind = TYPES[name]
    monkeypatch.setattr(dequant, "_CHUNK_ELEMENTS", 256 * 7)  # several chunks, the last one ragged
    blocks_np = random_blocks(name, 100)
    ours = dequantize(torch.from_numpy(blocks_np.reshape(-1)), kind, (50, 2 * kind.block), "x")
    theirs = quants.dequantize(blocks_np, quants.GGMLQuantizationType[name]).reshape(50, -1)
    assert ours.dtype == torch.float32
    np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", READ)
def test_gpu_equals_cpu(name: str) -> None:
    kind = TYPES[name]
    raw = torch.from_numpy(random_blocks(name, 300).reshape(-1))
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
