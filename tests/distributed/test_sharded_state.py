"""Weights that were cut for ranks: each reads its own files, and says with the others what the checkpoint says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.core.errors import CadenceError, ConfigError, WeightsError
from cadence.entrypoints.cli.main import main
from cadence.kernels.interface.collectives import RankPlace
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.loader.plausible import without_memory
from cadence.models.loader.sharded_state import ShardWeights, save_sharded
from cadence.models.loader.sliced_weights import sliced
from cadence.models.loader.source import WeightsSource
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_quantized import add_scales, make_quantized

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS = {"max_model_len": 128, "num_gpu_blocks_override": 100}
PROMPTS = [[5, 9, 17], list(range(20, 60))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True),
]


def say(model: Path, load_format: str = "auto", **options: Any) -> list[list[int]]:
    with LLM(str(model), **OPTIONS, tensor_parallel_size=2, load_format=load_format, **options) as llm:
        found = [output for params in PARAMS for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    return [list(output.outputs[0].token_ids) for output in found]


@pytest.fixture(scope="module")
def llama(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """-> (a model, its sharded state for two ranks, in several files each)"""
    model, output = tiny_model("llama"), tmp_path_factory.mktemp("sharded") / "llama"
    save_sharded(find_model(str(model)), 2, output, part_bytes=100_000)
    return model, output


def test_ranks_say_what_the_checkpoint_says(llama: tuple[Path, Path]) -> None:
    model, output = llama
    assert len(list(output.glob("model-rank-1-part-*.safetensors"))) > 1
    assert (output / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert say(output, "sharded_state") == say(model)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_quantised_blocks_stay_as_they_are(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks of 256 that two ranks would have parts of are stored as values."""
    model, output = make_tiny_gguf(tmp_path / "tiny.gguf", kind), tmp_path / "out"
    assert main(["save-sharded", str(model), "--output", str(output), "-tp", "2"]) == 0
    assert "--load-format sharded_state" in capsys.readouterr().out
    assert (output / "tiny.gguf").stat().st_size < model.stat().st_size / 4
    blocks = json.loads((output / "model-rank-0.index.json").read_text())["blocks"]
    assert ("model.layers.0.mlp.down_proj.weight" in blocks) is (kind == "Q8_0") and len(blocks) > 10
    if kind == "Q8_0":
        assert say(output, "sharded_state") == say(model)
    with pytest.raises(CadenceError, match="load_format=sharded_state"):
        LLM(str(output), **OPTIONS)


@pytest.mark.parametrize("form", ["FP8 channel", "W4A16 asymmetric", "GPTQ 4 bits, by activation", "NVFP4", "nf4"])
def test_a_quantised_checkpoint_stays_one(form: str, tmp_path: Path) -> None:
    """Every form that a rank would read of it, bit for bit: values, numbers, blocks, the order of columns."""
    files = find_model(str(make_quantized(form, tmp_path)))
    save_sharded(files, 2, tmp_path / "out")
    hf = load_hf_config(files)
    for rank in range(2):
        build = BuildContext(torch.float32, torch.device("meta"), ReferenceOps(), 1, ranks=RankPlace(rank, 2))
        whole, _ = open_checkpoint(files, hf)
        wanted, found = sliced(whole, without_memory(hf, build)), ShardWeights(tmp_path / "out", rank, 2)
        assert all(name.endswith(".bias") for name in {*wanted.names()} ^ {*found.names()}), "zeros, and needless"
        held = [name for name in wanted.names() if wanted.numbers(name) is not None]
        assert len(held) >= 10 and all(found.numbers(name) is not None for name in held)
        for name in found.names():
            assert found.shape(name) == wanted.shape(name)
            for ours, theirs in zip(forms_of(found, name), forms_of(wanted, name), strict=True):
                assert type(ours) is type(theirs), name
                assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs, name


def forms_of(source: WeightsSource, name: str) -> list[object]:
    numbers, blocks = source.numbers(name), source.blocks(name, False)
    parts = [] if numbers is None else [numbers.numbers, numbers.scales, numbers.bits, numbers.is_fp4, numbers.table]
    zeros = numbers.zeros if numbers is not None else 0
    whole = zeros.to(torch.int16) if isinstance(zeros, torch.Tensor) else zeros
    return [source.load(name), source.order(name), *(blocks or ()), *parts, whole]


def test_a_quantised_checkpoint_says_the_same(tmp_path: Path) -> None:
    """With a cache of float8 that has the checkpoint's scales."""
    model = make_quantized("FP8 channel", tmp_path)
    add_scales(model, {0: (0.02, 0.01), 1: (0.03, 0.01)})
    save_sharded(find_model(str(model)), 2, tmp_path / "out")
    shard = ShardWeights(tmp_path / "out", 1, 2)
    assert shard.kv_scales() == {"layers.0": pytest.approx((0.02, 0.01)), "layers.1": pytest.approx((0.03, 0.01))}
    assert say(tmp_path / "out", "sharded_state", kv_cache_dtype="fp8") == say(model, kv_cache_dtype="fp8")


def test_numbers_that_lie_are_refused(tmp_path: Path) -> None:
    save_sharded(find_model(str(make_quantized("FP8 channel", tmp_path))), 1, tmp_path / "out")
    path = tmp_path / "out" / "model-rank-0.index.json"
    index = json.loads(path.read_text())
    name = next(iter(index["numbers"]))
    for key, value, told in [
        ("bits", 5, "does not say how"),
        ("kind", "Q4_0", "blocks are not those"),
        ("has_order", True, "no tensor"),
        ("zero", None, "no tensor"),
        ("dtype", "int7", "not a matrix of numbers"),
        ("has_table", True, "no tensor"),
        ("has_table", "yes", "does not say how"),
    ]:
        changed = {**index, "numbers": {**index["numbers"], name: {**index["numbers"][name], key: value}}}
        path.write_text(json.dumps(changed))
        with pytest.raises(WeightsError, match=told):
            ShardWeights(tmp_path / "out", 0, 1)
    path.write_text(json.dumps({**index, "kv_scales": {"layers.0": [0.0, 1.0]}}))
    with pytest.raises(WeightsError, match="two positive numbers"):
        ShardWeights(tmp_path / "out", 0, 1)


@pytest.mark.parametrize("family", ["gpt2", "phi3"])
def test_slices_of_all_ranks_are_the_checkpoint(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    files = find_model(str(tiny_model(family)))
    save_sharded(files, 2, tmp_path / "out")
    whole, _ = open_checkpoint(files, load_hf_config(files))
    shards = [ShardWeights(tmp_path / "out", rank, 2) for rank in range(2)]
    assert all(sorted(shard.names()) == sorted(whole.names()) for shard in shards)
    for name in whole.names():
        values, parts = whole.load(name), [shard.load(name) for shard in shards]
        assert all(torch.isin(part, values).all() for part in parts)
        missing = ~(torch.isin(values, parts[0]) | torch.isin(values, parts[1]))
        assert not missing.any(), name
    total = sum(whole.load(name).numel() for name in whole.names())
    assert all(sum(shard.load(name).numel() for name in shard.names()) < 0.7 * total for shard in shards)


def test_a_rank_reads_its_own_files_alone(llama: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(llama[1], tmp_path / "one")
    for path in (tmp_path / "one").glob("model-rank-1*"):
        path.unlink()
    source = ShardWeights(tmp_path / "one", 0, 2)
    assert all(source.load(name).shape == source.shape(name) for name in source.names())
    with pytest.raises(WeightsError, match=r"model-rank-1\.index\.json"):
        say(tmp_path / "one", "sharded_state")


def test_what_is_broken_is_said(llama: tuple[Path, Path], tmp_path: Path) -> None:
    model, output = llama
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=1, but .* holds the sharded state of 2"):
        LLM(str(output), load_format="sharded_state")
    with pytest.raises(ConfigError, match=r"model-rank-0\.index\.json"):
        LLM(str(model), load_format="sharded_state", tensor_parallel_size=2)
    with pytest.raises(WeightsError, match="load_format=sharded_state"):
        LLM(str(output), tensor_parallel_size=1)
    with pytest.raises(ConfigError, match="not an empty folder"):
        save_sharded(find_model(str(model)), 2, output)
    broken = tmp_path / "broken"
    shutil.copytree(output, broken)
    part = broken / "model-rank-1-part-0.safetensors"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model-rank-1-part-0\.safetensors: .* bytes, but"):
        ShardWeights(broken, 1, 2)
    part.unlink()
    with pytest.raises(WeightsError, match="no such weights file"):
        ShardWeights(broken, 1, 2)
    with pytest.raises(WeightsError, match="one of 2 ranks, but there are 4"):
        ShardWeights(broken, 0, 4)
