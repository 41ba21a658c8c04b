"""Weights fit exactly or are refused in one message that names every tensor or file at fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import WeightsError
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.loader import load_model
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.slots import slots
from tests.helpers.tiny_models import MAX_LEN, make_tiny

pytestmark = pytest.mark.device

Edit = Callable[[dict[str, torch.Tensor]], None]


def load(directory: Path, fmt: str = "auto", dtype: torch.dtype = torch.float32) -> DecoderLM:
    files = ModelFiles(str(directory), directory, None)
    config = ModelConfig(files, load_hf_config(files), "float32", MAX_LEN, 0, 20, "raw_logprobs")
    build = BuildContext(dtype, torch.device("cpu"), ReferenceOps(), MAX_LEN)
    return load_model(config, LoadConfig(fmt, use_tqdm=True), build)


def equal(one: DecoderLM, other: DecoderLM) -> bool:
    pairs = zip(slots(one), slots(other), strict=True)
    return all(a.names == b.names and torch.equal(a.tensor, b.tensor) for a, b in pairs)


@pytest.fixture
def edited(tiny_model: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model whose tensors went through `edit`."""

    def make(edit: Edit, family: str = "llama") -> Path:
        source = tiny_model(family)
        shutil.copy(source / "config.json", tmp_path)
        tensors = load_file(source / "model.safetensors")
        edit(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return make


def test_all_that_does_not_fit_is_in_one_message(edited: Callable[..., Path]) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_proj.weight"]
        del tensors["lm_head.weight"]
        tensors["model.layers.9.mlp.extra.weight"] = torch.zeros(2)
        tensors["model.norm.weight"] = torch.zeros(65)
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(64, 96)

    directory = edited(edit)
    with pytest.raises(WeightsError) as error:
        load(directory)
    message = str(error.value)
    assert str(directory) in message
    assert "missing: model.layers.1.self_attn.k_proj.weight, lm_head.weight;" in message
    assert "left over: model.layers.9.mlp.extra.weight;" in message
    assert "model.norm.weight (expected [64], found [65])" in message
    assert "model.layers.0.mlp.up_proj.weight (expected [96, 64], found [64, 96])" in message


def test_long_lists_are_cut(edited: Callable[..., Path]) -> None:
    with pytest.raises(WeightsError, match=r"and 20 more$"):
        load(edited(lambda tensors: [tensors.pop(name) for name in list(tensors)[:28]]))


def test_transposed_matrices_are_checked_as_stored(edited: Callable[..., Path]) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        name = "transformer.h.0.mlp.c_fc.weight"
        tensors[name] = tensors[name].T.contiguous()

    with pytest.raises(WeightsError, match=r"c_fc.weight \(expected \[64, 256\], found \[256, 64\]\)"):
        load(edited(edit, "gpt2"))


def test_tensors_that_carry_nothing_are_passed_over(edited: Callable[..., Path]) -> None:
    def llama(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    load(edited(llama))

    def gpt2(tensors: dict[str, torch.Tensor]) -> None:
        tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    load(edited(gpt2, "gpt2"))


def test_a_tied_head_may_be_there_or_not(edited: Callable[..., Path], tiny_model: Callable[[str], Path]) -> None:
    def both(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def head_only(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    plain = load(tiny_model("qwen3")).embed.weight.values
    assert torch.equal(load(edited(both, "qwen3")).embed.weight.values, plain)
    assert torch.equal(load(edited(head_only, "qwen3")).embed.weight.values, plain)


def test_names_without_the_outer_prefix(edited: Callable[..., Path], tiny_model: Callable[[str], Path]) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    plain, bare = load(tiny_model("gpt2")), load(edited(edit, "gpt2"))
    assert equal(plain, bare)


def test_shards_equal_one_file(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    make_tiny("llama", tmp_path, sharded=True)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    whole, shards = load(tiny_model("llama")), load(tmp_path)
    assert equal(whole, shards)


def test_bad_shards_are_named(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path, sharded=True)
    shards = sorted(tmp_path.glob("*.safetensors"))
    index_file = tmp_path / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())

    shards[1].rename(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match=shards[1].name):
        load(tmp_path)
    (tmp_path / "elsewhere").rename(shards[1])

    index["weight_map"]["lm_head.weight"] = index["weight_map"]["model.norm.weight"] = shards[0].name
    index_file.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=rf"{shards[0].name}.*not in the file"):
        load(tmp_path)

    index["weight_map"]["lm_head.weight"] = "../model.safetensors"
    index_file.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="file names"):
        load(tmp_path)

    index_file.write_text("{")
    with pytest.raises(WeightsError, match=index_file.name):
        load(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 500, 100_000])
def test_truncated_file_is_named(size: int, edited: Callable[..., Path]) -> None:
    directory = edited(lambda tensors: None)
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WeightsError, match=r"model\.safetensors: truncated or corrupt"):
        load(directory)


def test_corrupt_header_is_named(edited: Callable[..., Path]) -> None:
    directory = edited(lambda tensors: None)
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[20:40] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors: truncated or corrupt"):
        load(directory)


def test_no_weights_at_all(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copy(tiny_model("llama") / "config.json", tmp_path)
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize("zipped", [True, False], ids=["a zip", "before torch 1.6"])
@pytest.mark.parametrize("parts", [1, 2])
def test_files_that_torch_saved(parts: int, zipped: bool, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny_model("llama")
    shutil.copy(source / "config.json", tmp_path)
    tensors = list(load_file(source / "model.safetensors").items())
    names = [f"pytorch_model-{part}.bin" for part in range(parts)] if parts > 1 else ["pytorch_model.bin"]
    for part, name in enumerate(names):
        torch.save(dict(tensors[part::parts]), tmp_path / name, _use_new_zipfile_serialization=zipped)
    if parts > 1:
        where = {name: names[place % parts] for place, (name, _) in enumerate(tensors)}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    assert equal(load(tmp_path), load(source))
    shutil.copy(source / "model.safetensors", tmp_path)
    (tmp_path / names[0]).write_bytes(b"not read where there are safetensors")
    assert equal(load(tmp_path), load(source))


def test_what_torch_saved_must_be_tensors(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copy(tiny_model("llama") / "config.json", tmp_path)
    torch.save({"lm_head.weight": Path("/")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin: no file of tensors"):
        load(tmp_path)


def test_a_lone_file_of_another_name_will_do(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copy(tiny_model("llama") / "model.safetensors", tmp_path / "weights.safetensors")
    assert len(SafetensorsWeights(tmp_path).names()) == 39


def test_dtype_is_converted_and_gemma_norms_stay_wide(tiny_model: Callable[[str], Path]) -> None:
    stored = load_file(tiny_model("gemma2") / "model.safetensors")
    model = load(tiny_model("gemma2"), dtype=torch.bfloat16)
    assert torch.equal(model.embed.weight.values, stored["model.embed_tokens.weight"].bfloat16())
    assert torch.equal(model.norm.weight, 1.0 + stored["model.norm.weight"])


def test_dummy_weights_are_the_same_at_every_start(tiny_model: Callable[[str], Path]) -> None:
    first, second = load(tiny_model("qwen2"), fmt="dummy"), load(tiny_model("qwen2"), fmt="dummy")
    assert equal(first, second)
    matrices = [slot.tensor for slot in slots(first) if slot.tensor.dim() == 2]
    assert all(0.01 < matrix.std() < 1.0 for matrix in matrices)
    assert not torch.equal(matrices[1], matrices[5])
