"""Every family with an adapter computes what PEFT computes around transformers' model, in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from tests.helpers.adapters import AdaptedModel, Run, files_of, make_adapter
from tests.helpers.tiny_models import FAMILIES, VOCAB
from tests.helpers.wide import DIFFERENT, each_once, mostly_wide

pytestmark = pytest.mark.device

LENGTH = 40
ENDS = {
    "opt": ("embed_tokens", "lm_head"),
    **dict.fromkeys(("gpt2", "gptj", "codegen", "mpt"), ("wte", "lm_head")),
    **dict.fromkeys(("bloom", "falcon"), ("word_embeddings", "lm_head")),
    "gpt_neox": ("embed_in", "embed_out"),
}
_MLP = ["dense_h_to_4h", "dense_4h_to_h"]
FUSED = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    **{family: ["query_key_value", "dense", *_MLP] for family in ("bloom", "falcon", "gpt_neox")},
    "mpt": ["Wqkv", "out_proj", "up_proj", "down_proj"],
    "gptj": ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"],
    "codegen": ["qkv_proj", "out_proj", "fc_in", "fc_out"],
    "phi": ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"],
    "starcoder2": ["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
    **{family: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"] for family in ("glm", "glm4")},
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ("qwen3_moe", "mixtral", "granite_moe")
STATES = {  # PEFT adapts no last projection of a family of Mamba
    "mamba": ["in_proj", "x_proj"],
    "falcon_mamba": ["in_proj", "x_proj"],
    "mamba2": ["in_proj"],
    "jamba": [*LINEARS, "in_proj", "x_proj", "out_proj"],
    "bamba": [*LINEARS, "in_proj", "out_proj"],
    "granite_hybrid": [*LINEARS[:4], "in_proj", "out_proj", "input_linear", "output_linear"],
    "falcon_h1": [*LINEARS, "in_proj"],
    "falcon_h1_bias": [*LINEARS, "in_proj"],
    "lfm2": [*LINEARS[:3], "in_proj", "out_proj", "w1", "w2", "w3"],
    "qwen3_next": [*LINEARS[:4], "in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate"],
}
OPT = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "project_in", "project_out"]


@cache
def cpu() -> Ops:
    return CpuOps(Calls(2))


def linears(family: str) -> list[str]:
    if family.startswith("llama4"):
        return LINEARS  # of shared experts too, which have adapters
    if family.startswith(EXPERTS):
        return LINEARS[:4]  # experts have no adapters
    if family in STATES:
        return STATES[family]
    return OPT if family.startswith("opt") else FUSED.get(_name(family), LINEARS)


def ends(family: str) -> tuple[str, str]:
    if family.removeprefix("falcon_").startswith("mamba"):
        return "embeddings", "lm_head"
    return ("embed_tokens", "lm_head") if family in STATES else ENDS.get(_name(family), ("embed_tokens", "lm_head"))


def _name(family: str) -> str:
    """Without what sets a version apart."""
    return "gpt_neox" if family.startswith("gpt_neox") else family.partition("_")[0]


def tokens(count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(count)).tolist()


@torch.inference_mode()
def theirs(adapted: Any, ids: list[int]) -> torch.Tensor:
    return torch.log_softmax(adapted(torch.tensor([ids])).logits[0].float(), dim=-1)


def ours(model: AdaptedModel, ids: list[int], slot: int, *, last_only: bool = False) -> torch.Tensor:
    return torch.log_softmax(model.logits([Run(ids, slot)], last_only=last_only)[0].float(), dim=-1)


def check(directory: Path, to: Path, config: dict[str, Any], ops: Ops, dtype: torch.dtype = torch.float32) -> None:
    """The adapter changes much, and our model with it says the same as PEFT's."""
    adapted = make_adapter(directory, to, dtype=dtype, **config)
    model, ids = AdaptedModel(files_of(directory), ops), tokens(LENGTH)
    plain = ours(model, ids, -1)
    assert model.put(3, to)
    wanted = theirs(adapted, ids)
    assert (wanted - plain).abs().max() > 0.05, "an adapter that changes nothing proves little"
    torch.testing.assert_close(ours(model, ids, 3), wanted, atol=2e-4, rtol=0)
    torch.testing.assert_close(ours(model, ids, 3, last_only=True), wanted[-1:], atol=2e-4, rtol=0)
    assert torch.equal(ours(model, ids, -1), plain), "without an adapter nothing has changed"
    model.lora.clear(3)
    assert torch.equal(ours(model, ids, 3), plain), "nor in an empty slot"


@pytest.mark.parametrize("family", mostly_wide([*FAMILIES, *STATES], [*DIFFERENT, "phi3", "gemma3", "falcon_h1"]))
def test_every_family_and_module(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Ranks and scales by patterns, embeddings and head as LoRA."""
    targets = [*linears(family), *ends(family)]
    config = {
        "r": 4,
        "lora_alpha": 6,
        "target_modules": targets,
        "rank_pattern": {targets[0]: 7, r".*\.1\..*" + targets[1]: 3},
        "alpha_pattern": {targets[1]: 11},
    }
    check(tiny_model(family), tmp_path, config, ReferenceOps())


VARIANTS: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "all-linear": {"target_modules": "all-linear"},
    "regex": {"target_modules": r".*layers\.[02]\..*(q_proj|down_proj)"},
    "some layers": {"layers_to_transform": [1, 3]},
    "dora": {"use_dora": True},
    "lora bias": {"lora_bias": True},
    "bias of adapted modules": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "dora and biases": {"use_dora": True, "bias": "lora_only"},
    "saved ends": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "dora of ends": {"use_dora": True, "target_modules": [*LINEARS, "embed_tokens", "lm_head"]},
    "head": {"target_modules": ["lm_head"]},
    "embedding": {"target_modules": ["embed_tokens"]},
}


@pytest.mark.parametrize(("variant", "kernels"), each_once([*VARIANTS], ["reference", "cpu"]))
def test_variants(variant: str, kernels: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    config = {"r": 8, "lora_alpha": 12, "target_modules": LINEARS} | VARIANTS[variant]
    check(tiny_model("llama_bias"), tmp_path, config, cpu() if kernels == "cpu" else ReferenceOps())


OTHERS = ["gpt2", "opt", "opt_postnorm", "phi3", "gemma3", "qwen2", "gpt_neox", "cohere"]
OTHERS += ["falcon_h1_bias", "granite_hybrid"]


@pytest.mark.parametrize("family", mostly_wide(OTHERS, ["gpt2", "opt_postnorm", "gemma3"]))
def test_variants_of_other_families(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Fused and transposed matrices, biases of norms, scaled and tied embeddings."""
    targets = linears(family)
    biases = "lora_only" if family in STATES else "all"  # that of a convolution is not adapted
    dora = {"r": 8, "lora_alpha": 12, "target_modules": targets, "use_dora": True, "bias": biases}
    check(tiny_model(family), tmp_path / "dora", dora, cpu())
    saved = {"r": 8, "lora_alpha": 12, "target_modules": targets, "modules_to_save": list(ends(family))}
    check(tiny_model(family), tmp_path / "saved", saved, cpu())
    embedded = {"r": 8, "lora_alpha": 12, "target_modules": [ends(family)[0]], "use_dora": True}
    check(tiny_model(family), tmp_path / "embedded", embedded, cpu())
