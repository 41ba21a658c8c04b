"""Other weights for an engine that runs: its tokens are those of one that was started on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence import LLM, SamplingParams
from cadence.core.errors import InvalidRequestError, WeightsError
from cadence.models.loader.refill import filled_by_loader
from tests.helpers.head_layouts import LAYOUTS
from tests.helpers.tiny_others import make_other
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "device": "cpu"}
PROMPTS = [{"prompt_token_ids": [7 + index, *range(20, 60)]} for index in range(3)]
ENGINES = {
    "llama": ("llama", {}),
    "tied and packed in eight bits": ("qwen2", {"quantization": "int8"}),
    "bfloat16": ("llama_bias", {"dtype": "bfloat16"}),
    "experts": ("qwen3_moe", {}),
    "experts in four bits": ("mixtral", {"quantization": "int4"}),
    "its own kind of names": ("gpt2", {}),
    "a draft model": ("llama3", {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}}),
    "two ranks": ("llama", {"tensor_parallel_size": 2}),
    "two stages": ("qwen3", {"pipeline_parallel_size": 2}),
    "two engines": ("llama", {"data_parallel_size": 2}),
    "engines that share experts": ("qwen3_moe", {"data_parallel_size": 2, "enable_expert_parallel": True}),
}
FEW = ("llama", "tied and packed in eight bits", "experts", "two ranks")


def tokens_of(llm: LLM) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, params, use_tqdm=False)]


def open_llm(directory: Path, options: dict[str, Any]) -> LLM:
    if drafts := options.get("speculative_config"):
        options = {**options, "speculative_config": {**drafts, "model": str(directory)}}
    return LLM(str(directory), **{**OPTIONS, **options})


def stored(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def with_weights(directory: Path, like: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(like, directory)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def scrambled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the same sizes and spreads, in another order."""
    order = torch.Generator().manual_seed(3)
    return {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=order)].view(tensor.shape)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("name", mostly_wide(ENGINES, FEW))
def test_tokens_are_those_of_an_engine_with_these_weights(
    tiny_model: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """From a folder, by name, and some by name; also after they were dropped."""
    family, options = ENGINES[name]
    first = tiny_model(family)
    tensors = stored(first)
    other = with_weights(tmp_path / "other", first, scrambled(tensors))
    matrices = [each for each in tensors if "layers.1." in each or ".h.1." in each]
    some = {each: stored(other)[each] for each in matrices[::3]}
    mixed = with_weights(tmp_path / "mixed", first, tensors | some)
    wanted = {}
    for directory in (first, other, mixed):
        with open_llm(directory, options) as llm:
            wanted[directory] = tokens_of(llm)
    assert wanted[first] != wanted[other] != wanted[mixed] != wanted[first]
    with open_llm(first, options) as llm:
        assert tokens_of(llm) == wanted[first]
        llm.update_weights(other)
        assert tokens_of(llm) == wanted[other]
        llm.sleep(2)
        llm.wake_up()
        assert tokens_of(llm) == wanted[other], "where they came from last"
        llm.update_weights(tensors.items())
        assert tokens_of(llm) == wanted[first]
        llm.update_weights(some)
        assert tokens_of(llm) == wanted[mixed]
        llm.sleep(2)
        llm.wake_up()
        assert tokens_of(llm) == wanted[mixed], "and what was given by name"
        llm.update_weights(first)
        assert tokens_of(llm) == wanted[first]


@pytest.mark.parametrize("family", mostly_wide(["qwen2_moe", "gpt_neox"], ["qwen2_moe"]))
def test_through_transformers(tmp_path: Path, family: str) -> None:
    """Whose modules have packed copies of some matrices."""
    options = {"model_impl": "transformers"}
    first = make_other(family, tmp_path / "first")
    other = with_weights(tmp_path / "other", first, scrambled(stored(first)))
    with open_llm(other, options) as llm:
        wanted = tokens_of(llm)
    with open_llm(first, options) as llm:
        before = tokens_of(llm)
        llm.update_weights(other)
        assert tokens_of(llm) == wanted != before
        llm.sleep(2)
        llm.wake_up()
        assert tokens_of(llm) == wanted
        llm.update_weights(stored(first))
        assert tokens_of(llm) == before


def test_a_head_in_the_same_files_is_read_with_them(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """It drafts as that of an engine with these weights, beside the same tokens."""
    first = LAYOUTS["mtp as in MiMo"](tiny_model("llama"), tmp_path / "first")[1]
    other = with_weights(tmp_path / "other", first, scrambled(stored(first)))
    options = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}}

    def head(llm: LLM) -> list[torch.Tensor]:
        """All that it holds."""
        (tensors,) = llm.collective_rpc(lambda worker: filled_by_loader(worker._weights.head))
        return [tensor.clone() for tensor in tensors]

    def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
        return len(one) == len(two) > 3 and all(map(torch.equal, one, two))

    with open_llm(other, options) as llm:
        wanted, answers = head(llm), tokens_of(llm)
    with open_llm(first, options) as llm:
        before = head(llm)
        assert not any(map(torch.equal, before, wanted))
        llm.update_weights(other)
        assert same(head(llm), wanted) and tokens_of(llm) == answers
        llm.update_weights(stored(first))
        assert same(head(llm), before)
        llm.update_weights(stored(other))
        assert same(head(llm), wanted) and tokens_of(llm) == answers


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> LLM:
    return LLM(str(tiny_model("llama")), **OPTIONS)


def test_what_does_not_fit_changes_nothing(llm: LLM, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    wanted, tensors = tokens_of(llm), stored(tiny_model("llama"))
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(WeightsError, match="weights do not fit"):
        llm.update_weights(tiny_model("qwen3_moe"))
    with pytest.raises(WeightsError, match=rf"{name}: expected \[.*\], found \[3, 4\]"):
        llm.update_weights({"model.norm.weight": tensors["model.norm.weight"] * 2, name: torch.ones(3, 4)})
    with pytest.raises(WeightsError, match=r"up_proj\.weight: the model has no such weight"):
        llm.update_weights({"model.layers.9.mlp.up_proj.weight": torch.ones(3)})
    with pytest.raises(InvalidRequestError, match="there is no"):
        llm.update_weights(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="no "):
        llm.update_weights(tmp_path)
    with pytest.raises(InvalidRequestError, match="pairs of a name and a tensor"):
        llm.update_weights([("a", 1)])
    llm.sleep(2)
    with pytest.raises(InvalidRequestError, match="the weights sleep"):
        llm.update_weights(tiny_model("llama"))
    llm.wake_up()
    assert tokens_of(llm) == wanted


def test_what_runs_goes_on_with_other_weights(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Its tokens so far, and then those that the other weights choose after them."""
    first = tiny_model("llama")
    llm = open_llm(first, {"num_scheduler_steps": 1})
    engine = llm.llm_engine
    other = with_weights(tmp_path / "other", first, scrambled(stored(first)))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    engine.add_request("runs", PROMPTS[0], params)
    seen: list[int] = []
    while len(seen) < 4:
        for output in engine.step():
            seen = list(output.outputs[0].token_ids)
    llm.update_weights(other)
    while engine.has_unfinished_requests():
        for output in engine.step():
            whole = list(output.outputs[0].token_ids)
    (going_on,) = llm.generate({"prompt_token_ids": [*PROMPTS[0]["prompt_token_ids"], *seen]}, params, use_tqdm=False)
    assert whole == seen + list(going_on.outputs[0].token_ids)[: 8 - len(seen)]


def test_weights_that_were_overwritten_on_the_disk(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A trainer saves into the same folder: they are read again when asked for, and when the engine wakes from level
    2."""
    first = tiny_model("llama")
    mine = with_weights(tmp_path / "mine", first, stored(first))
    other = with_weights(tmp_path / "other", first, scrambled(stored(first)))
    with open_llm(other, {}) as llm:
        wanted = tokens_of(llm)
    with open_llm(mine, {}) as llm:
        before = tokens_of(llm)
        shutil.copy(other / "model.safetensors", mine / "new")
        (mine / "new").rename(mine / "model.safetensors")
        assert tokens_of(llm) == before
        assert llm.collective_rpc("reload_weights") == [None] and tokens_of(llm) == wanted
        shutil.copy(first / "model.safetensors", mine / "new")
        (mine / "new").rename(mine / "model.safetensors")
        llm.sleep(2)
        llm.wake_up(["weights"])
        llm.wake_up(["kv_cache"])
        assert tokens_of(llm) == before


def test_calls_by_name_and_by_function(llm: LLM) -> None:
    assert llm.collective_rpc("check_health") == [None]
    with pytest.raises(InvalidRequestError, match=r"'format_disk' is none of sleep, wake_up"):
        llm.collective_rpc("format_disk")
    with pytest.raises(InvalidRequestError, match=r"sleep: .*unexpected keyword"):
        llm.collective_rpc("sleep", kwargs={"depth": 3})
    llm.collective_rpc("sleep", args=(1,))
    assert llm.collective_rpc("is_sleeping") == [True]
    llm.collective_rpc("wake_up", kwargs={"tags": ["weights", "kv_cache"]})
    assert not llm.is_sleeping()
    (count,) = llm.apply_model(lambda model: sum(1 for _ in model.modules()))
    assert llm.collective_rpc(lambda worker, more: len(list(worker.get_model().modules())) + more, args=(5,)) == [
        count + 5
    ]
