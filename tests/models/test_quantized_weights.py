"""Quantised checkpoints stand for the values that their formats prescribe, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.loader.quantized_weights import QuantizedWeights
from cadence.models.quant.block_kinds import values_of_blocks
from tests.helpers.tiny_quantized import FORMS, make_quantized

pytestmark = pytest.mark.device


def open_at(directory: Path) -> QuantizedWeights:
    files = ModelFiles(str(directory), directory, None)
    source, _ = open_checkpoint(files, load_hf_config(files))
    assert isinstance(source, QuantizedWeights)
    return source


@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_of_the_format(tmp_path: Path, form: str) -> None:
    source = open_at(make_quantized(form, tmp_path))
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    left = set(source.names()) - expected.keys()
    assert left == {name for name in left if name.endswith(".bias")} and left == set(source.zero_biases())
    for name, values in expected.items():
        assert source.shape(name) == values.shape
        assert torch.equal(source.load(name).float(), values), name


@pytest.mark.parametrize("form", FORMS)
def test_blocks_round_to_the_values(tmp_path: Path, form: str) -> None:
    """Kernels multiply the numbers before they are rounded to the type that checkpoints stand for."""
    source = open_at(make_quantized(form, tmp_path))
    names = [name for name in source.names() if name.endswith("_proj.weight")]
    found = 0
    for name in names:
        blocks = source.blocks(name, transposed=False)
        found += blocks is not None
        if blocks is None:
            continue
        values = source.load(name)
        widened = values_of_blocks(*blocks, source.shape(name))
        if form == "bnb int8":  # one rounding less
            assert torch.allclose(widened, values.float(), rtol=2**-8)
        else:
            assert torch.equal(widened.to(values.dtype), values)
    assert found == (len(names) if FORMS[form].exact or form == "bnb int8" else 0)
