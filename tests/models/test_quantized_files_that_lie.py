"""Quantised checkpoints that lie load, or are refused in a sentence that names the file and the tensor or field."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.config.files.module_names import ModuleNames
from cadence.core.errors import CadenceError, ModelFileError, WeightsError
from tests.helpers import lies
from tests.helpers.tiny_quantized import FORMS, make_quantized
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

KINDS = ["W4A16 asymmetric", "FP8 block", "NVFP4", "GPTQ 4 bits, by activation", "AWQ", "fp8 block 128", "nf4, twice"]
MODULE = "model.layers.1.mlp.down_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    found: dict[str, Path] = {}

    def get(form: str) -> Path:
        if form not in found:
            found[form] = make_quantized(form, tmp_path_factory.mktemp("form"), num_hidden_layers=2)
        return found[form]

    return get


def fields_of(section: dict[str, Any], path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Paths of every field, and of fields of objects within."""
    found = []
    for name, value in section.items():
        found.append((*path, name))
        if isinstance(value, dict):
            found += fields_of(value, (*path, name))
    return found


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), [0]))
@pytest.mark.parametrize("form", mostly_wide(KINDS, ["W4A16 asymmetric", "nf4, twice"]))
def test_lies_in_the_config(made: Callable[[str], Path], tmp_path: Path, form: str, part: int) -> None:
    source = made(form)
    raw = json.loads((source / "config.json").read_text())
    section = raw["quantization_config"] | {"modules_to_not_convert": None, "dynamic": {}, "weight_block_size": None}
    raw["quantization_config"] = section | raw["quantization_config"]
    refused = 0
    for number, where in enumerate(fields_of(raw["quantization_config"], ("quantization_config",))):
        for lie in lies.lies_of(part, number):
            directory = lies.copy_with(source, tmp_path / "m", "config.json", lies.json_with(raw, where, lie))
            try:
                lies.load(directory)
            except CadenceError as error:
                refused += 1
                assert str(directory) in str(error) and len(str(error)) < 1500, (where, lie, error)
    assert refused > 10


@pytest.mark.parametrize("pattern", ["re:(", r"re:(a)\1", "re:" + "x" * 10_000, "re:(a{99}){99}"])
def test_patterns_that_are_none_or_too_large(made: Callable[[str], Path], tmp_path: Path, pattern: str) -> None:
    source = made("W4A16 asymmetric")
    raw = json.loads((source / "config.json").read_text())
    text = lies.json_with(raw, ("quantization_config", "ignore"), [pattern])
    with pytest.raises(ModelFileError, match="quantization_config"):
        lies.load(lies.copy_with(source, tmp_path / "m", "config.json", text))


def test_patterns_that_would_take_forever() -> None:
    names = ModuleNames.of(("re:(a+)+$", "re:" + "(a|a)*" * 20 + "c"), exact=True)
    assert not names.names("a" * 200 + "b") and names.names("a" * 200)


def test_too_many_patterns() -> None:
    with pytest.raises(ValueError, match="257 patterns, at most 256"):
        ModuleNames.of(("re:a",) * 257, exact=True)


def spoiled(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


def set_all(part: str, value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[f"{MODULE}.{part}"].fill_(value)


def put(part: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{MODULE}.{part}": tensor})


def drop(part: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(f"{MODULE}.{part}")


NAN, HUGE = float("nan"), 2**31 - 1
STATE = "weight.quant_state.bitsandbytes__nf4"
LIES: list[tuple[str, str, Callable[[Tensors], object]]] = [  # form, part that is named, what is done
    ("W4A16 asymmetric", "weight_scale", set_all("weight_scale", NAN)),
    ("W4A16 asymmetric", "weight_scale", put("weight_scale", torch.ones(128, 3))),
    ("W4A16 asymmetric", "weight_scale", put("weight_scale", torch.ones(128, 4, dtype=torch.int32))),
    ("W4A16 asymmetric", "weight_scale", drop("weight_scale")),
    ("W4A16 asymmetric", "weight_zero_point", drop("weight_zero_point")),
    ("W4A16 asymmetric", "weight_zero_point", put("weight_zero_point", torch.zeros(15, 4, dtype=torch.int32))),
    ("W4A16 asymmetric", "weight_shape", put("weight_shape", torch.tensor([128, 2**62]))),
    ("W4A16 asymmetric", "weight_shape", put("weight_shape", torch.tensor([128, -256]))),
    ("W4A16 asymmetric", "weight_shape", drop("weight_shape")),
    ("W4A16 asymmetric", "weight_packed", put("weight_packed", torch.zeros(0, 32, dtype=torch.int32))),
    ("W4A16 asymmetric", "weight_packed", put("weight_packed", torch.zeros(128, 32))),
    ("W4A16 asymmetric", "weight_g_idx", put("weight_g_idx", torch.full((256,), 4, dtype=torch.int32))),
    ("W4A16 asymmetric", "weight_g_idx", put("weight_g_idx", torch.zeros(255, dtype=torch.int32))),
    ("FP8 block", "weight_scale", put("weight_scale", torch.ones(1, 1))),
    ("FP8 block", "weight_scale", set_all("weight_scale", float("inf"))),
    ("NVFP4", "weight_global_scale", set_all("weight_global_scale", 0.0)),
    ("NVFP4", "weight_scale", put("weight_scale", torch.ones(128, 8).to(torch.float8_e4m3fn))),
    ("NVFP4", "weight_scale", put("weight_scale", torch.full((128, 16), NAN).to(torch.float8_e4m3fn))),
    ("MXFP4", "weight_scale", set_all("weight_scale", 255)),
    ("GPTQ 4 bits, by activation", "g_idx", set_all("g_idx", 8)),
    ("GPTQ 4 bits, by activation", "g_idx", set_all("g_idx", -2)),
    ("GPTQ 4 bits, by activation", "g_idx", set_all("g_idx", HUGE)),
    ("GPTQ 4 bits, by activation", "scales", set_all("scales", NAN)),
    ("GPTQ 4 bits, by activation", "qzeros", put("qzeros", torch.zeros(8, 8, dtype=torch.int32))),
    ("AWQ", "scales", put("scales", torch.ones(3, 128))),
    ("AWQ", "qzeros", drop("qzeros")),
    ("AWQ", "qweight", put("qweight", torch.zeros(250, 16, dtype=torch.int32))),
    ("fp8 block 128", "weight_scale_inv", set_all("weight_scale_inv", NAN)),
    ("fp8 block 128", "weight_scale_inv", put("weight_scale_inv", torch.ones(2, 2))),
    ("fp8 block 128", "weight", drop("weight_scale_inv")),
    ("nf4, twice", STATE, put(STATE, torch.tensor(list(b"[]"), dtype=torch.uint8))),
    ("nf4, twice", STATE, put(STATE, torch.tensor(list(b'{"shape": [128, 1e3]}'), dtype=torch.uint8))),
    ("nf4, twice", STATE, put(STATE, torch.tensor(list(b"[" * 4000), dtype=torch.uint8))),
    ("nf4, twice", STATE, put(STATE, torch.zeros(10_000, dtype=torch.uint8))),
    ("nf4, twice", "weight.absmax", put("weight.absmax", torch.zeros(5, dtype=torch.uint8))),
    ("nf4, twice", "weight.quant_map", set_all("weight.quant_map", NAN)),
    ("nf4, twice", "weight", put("weight", torch.zeros(100, 1, dtype=torch.uint8))),
    ("bnb int8", "SCB", put("SCB", torch.ones(127))),
    ("bnb int8", "SCB", set_all("SCB", NAN)),
]  # fmt: skip


@pytest.mark.parametrize(("form", "part", "change"), LIES, ids=[f"{form}-{part}" for form, part, _ in LIES])
def test_lies_in_tensors(
    made: Callable[[str], Path], tmp_path: Path, form: str, part: str, change: Callable[[Tensors], object]
) -> None:
    directory = spoiled(made(form), tmp_path / "m", change)
    with pytest.raises(WeightsError) as caught:
        lies.load(directory)
    assert str(directory) in str(caught.value) and f"{MODULE}.{part}'" in str(caught.value)


def test_what_is_left_out_is_not_read_as_quantised(made: Callable[[str], Path], tmp_path: Path) -> None:
    source = made("AWQ")
    raw = json.loads((source / "config.json").read_text())
    text = lies.json_with(raw, ("quantization_config", "modules_to_not_convert"), ["mlp.down_proj"])
    with pytest.raises(WeightsError, match=r"down_proj.*leaves 'model.layers.0.mlp.down_proj' out"):
        lies.load(lies.copy_with(source, tmp_path / "m", "config.json", text))
    text = lies.json_with(raw, ("quantization_config", "modules_to_not_convert"), ["mlp.down", "lm_head"])
    lies.load(lies.copy_with(source, tmp_path / "m", "config.json", text))


def test_zero_groups_are_zeros(made: Callable[[str], Path], tmp_path: Path) -> None:
    for form, part in (("W4A16 asymmetric", "weight_scale"), ("AWQ", "scales")):
        lies.load(spoiled(made(form), tmp_path / form, set_all(part, 0.0)))


DAMAGED = ["W4A16 asymmetric", "AWQ", "GPTQ 4 bits, by activation", "nf4, twice", "INT8 W8A8"]


@pytest.mark.parametrize("form", mostly_wide(DAMAGED, ["GPTQ 4 bits, by activation"]))
def test_damaged_files_crash_nothing(made: Callable[[str], Path], tmp_path: Path, form: str) -> None:
    shutil.copytree(made(form), tmp_path / "m")
    command = [sys.executable, "-m", "tests.helpers.quantized_fuzz", str(tmp_path / "m"), "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, loaded = (int(text.split()[0]) for text in done.stdout.splitlines()[-1].split(", "))
    assert refused > 2 and loaded > 2


def test_every_form_is_written() -> None:
    assert {form for form, _, _ in LIES} | set(KINDS) <= FORMS.keys()
