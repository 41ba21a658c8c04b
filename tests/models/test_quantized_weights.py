"""Quantised checkpoints stand for the values that their formats prescribe, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cadence.config.files.quantization_names import METHODS
from cadence.config.files.stored_as import QuantizedFormat, StoredLayout
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.quantized import read_quantized
from cadence.config.reference import ModelFiles
from cadence.core.block_grids import FP4_VALUES
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.loader.quantized_weights import QuantizedWeights
from cadence.models.quant.block_kinds import values_of_blocks
from cadence.models.quant.blocks import integer_blocks
from tests.helpers.tiny_quantized import FORMS, make_quantized

pytestmark = pytest.mark.device

MODULES = [
    "lm_head",
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.mlp.up_proj",
    "model.layers.1.mlp.up_proj",
    "model.layers.2.mlp.up_proj",
    "model.layers.2.mlp.up_proj_2",
]


def open_at(directory: Path) -> QuantizedWeights:
    files = ModelFiles(str(directory), directory, None)
    source, _ = open_checkpoint(files, load_hf_config(files))
    assert isinstance(source, QuantizedWeights)
    return source


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of this form, made once."""
    return cache(lambda form: make_quantized(form, tmp_path_factory.mktemp("form")))


@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_of_the_format(made: Callable[[str], Path], form: str) -> None:
    source = open_at(made(form))
    expected = load_file(made(form).parent / "plain" / "model.safetensors")
    left = set(source.names()) - expected.keys()
    assert left == {name for name in left if name.endswith(".bias")} and left == set(source.zero_biases())
    for name, values in expected.items():
        assert source.shape(name) == values.shape
        assert torch.equal(source.load(name).float(), values), name


def test_every_method_and_layout_is_among_these_forms() -> None:
    found = [read(form.config) for form in FORMS.values()]
    assert {each.method for each in found} == set(METHODS)
    assert {scheme.stored.layout for each in found for scheme in each.schemes} == set(StoredLayout)


def test_modules_are_found_by_name_pattern_and_class() -> None:
    def group(targets: list[str], bits: int) -> dict[str, Any]:
        weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
        return {"targets": targets, "weights": weights, "format": "pack-quantized"}

    groups = {
        "a": group(["Linear"], 4),
        "b": group(["re:.*[13].mlp.*"], 8),
        "c": group(["model.layers.2.mlp.up_proj"], 2),
    }
    left_out = ["lm_head", "re:.*layers.0.self_attn.*"]
    found = read({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": left_out, "format": "x"})
    bits = {name: stored and stored.bits for name in MODULES if (stored := found.stored_as(name)) or True}
    assert bits == {
        "lm_head": None,
        "model.embed_tokens": None,
        "model.layers.0.self_attn.q_proj": None,
        "model.layers.0.mlp.up_proj": 4,
        "model.layers.1.mlp.up_proj": 8,
        "model.layers.2.mlp.up_proj": 2,
        "model.layers.2.mlp.up_proj_2": 4,
    }


def test_modules_that_gptq_treats_apart() -> None:
    dynamic = {"-:.*q_proj": {}, r"+:.*\.1\.mlp": {"bits": 8, "group_size": 64}, "lm_head": {"group_size": -1}}
    found = read({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic})
    sizes = {name: (s.bits, s.group) for name in MODULES if (s := found.stored_as(name)) is not None}
    assert sizes == {name: (4, 128) for name in MODULES if "q_proj" not in name} | {
        "model.layers.1.mlp.up_proj": (8, 64),
        "lm_head": (4, 0),
    }


def test_parts_of_names_are_whole_components() -> None:
    found = read({"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": ["0.mlp", "lm_head"]})
    left_out = [name for name in MODULES if found.stored_as(name) is None]
    assert left_out == ["lm_head", "model.layers.0.mlp.up_proj"]


def read(section: dict[str, Any]) -> QuantizedFormat:
    found = read_quantized(HFConfig("LlamaForCausalLM", {"quantization_config": section}, "m", Path("config.json")))
    assert found is not None
    return found


@pytest.mark.parametrize("form", FORMS)
def test_blocks_round_to_the_values(made: Callable[[str], Path], form: str) -> None:
    """Kernels multiply the numbers before they are rounded to the type that checkpoints stand for."""
    source = open_at(made(form))
    names = [name for name in source.names() if name.endswith("_proj.weight")]
    found = 0
    for name in names:
        blocks = source.blocks(name, transposed=False)
        found += blocks is not None
        if blocks is None:
            continue
        values = source.load(name)
        widened, order = values_of_blocks(*blocks, source.shape(name)), source.order(name)
        assert (order is not None) == ("by activation" in form)
        values = values if order is None else values[:, order]
        if form == "bnb int8":  # one rounding less
            assert torch.allclose(widened, values.float(), rtol=2**-8)
        elif form.startswith(("nf4", "fp4")):
            assert_near_the_table(source, name, widened)
        else:
            assert torch.equal(widened.to(values.dtype), values)
    assert found == len(names)


def assert_near_the_table(source: QuantizedWeights, name: str, widened: torch.Tensor) -> None:
    """To 2^-15.9 of the largest of 64 columns, before anything is rounded to the type of the values."""
    numbers = source.numbers(name)
    assert numbers is not None and numbers.table is not None
    exact = numbers.table.double()[numbers.numbers.int()].view(*numbers.scales.shape, -1)
    off = (widened.view(exact.shape) - exact * numbers.scales.double()[..., None]).abs()
    assert (off <= numbers.scales[..., None] * (2.0**-15.9 + 2.0**-23)).all()


@pytest.mark.parametrize("form", FORMS)
def test_numbers_round_to_the_values(made: Callable[[str], Path], form: str) -> None:
    """As they are given to kernels that take no blocks."""
    source = open_at(made(form))
    names = [name for name in source.names() if name.endswith("_proj.weight")]
    found = 0
    for name in names:
        numbers = source.numbers(name)
        found += numbers is not None
        if numbers is None:
            continue
        values, order = source.load(name), source.order(name)
        values = values if order is None else values[:, order]
        rows, groups = numbers.scales.shape
        zeros = numbers.zeros if isinstance(numbers.zeros, int) else numbers.zeros.unsqueeze(2)
        held = torch.tensor(FP4_VALUES)[numbers.numbers.int()] / 2 if numbers.is_fp4 else numbers.numbers.float()
        held = held if numbers.table is None else numbers.table[numbers.numbers.int()]
        runs = held.view(rows, groups, -1) - zeros
        widened = (runs * numbers.scales.float().unsqueeze(2)).view(values.shape)
        if form == "bnb int8":  # one rounding less
            assert torch.allclose(widened, values.float(), rtol=2**-8)
        else:
            assert torch.equal(widened.to(values.dtype), values)
    assert found == len(names)


@pytest.mark.parametrize(
    ("bits", "zero", "scale", "kind"),
    [
        (4, 8, torch.tensor(0.01, dtype=torch.bfloat16), "Q4_0"),
        (4, 7, torch.tensor(0.01, dtype=torch.float16), "Q4_Z"),
        (2, 2, torch.tensor(0.01, dtype=torch.float16), "Q4_Z"),
        (5, 16, torch.tensor(0.01, dtype=torch.float16), ""),  # no half of a byte holds them
        (4, 8, torch.tensor(0.01), ""),  # more bits than float16 has
        (4, 8, torch.tensor(1e-9, dtype=torch.bfloat16), ""),
        (4, 7, torch.tensor(1e5, dtype=torch.bfloat16), ""),
        (8, 128, torch.tensor(0.01, dtype=torch.bfloat16), "Q8_0"),
        (8, 128, torch.tensor(0.01), "Q8_F"),
        (8, 127, torch.tensor(0.01, dtype=torch.float16), "Q8_Z"),
        (8, 127, torch.tensor(0.01), ""),
    ],
)
def test_only_what_a_kind_holds_exactly_becomes_blocks(bits: int, zero: int, scale: torch.Tensor, kind: str) -> None:
    quants = torch.randint(0, 1 << bits, (5, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    found = integer_blocks(quants, bits, zero, scale.expand(5, 2))
    assert (found[0] if found else "") == kind
    if found:
        exact = (quants.double() - zero) * scale.double()
        assert torch.equal(values_of_blocks(*found, (5, 64)), exact.float())
    assert integer_blocks(quants[:, :40], bits, zero, scale.expand(5, 1)) is None  # no whole blocks
    assert integer_blocks(quants, bits, zero, scale.expand(5, 4)) is None  # groups of 16
