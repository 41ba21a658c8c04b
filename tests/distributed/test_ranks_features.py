"""Adapters and models that draft, where ranks share every layer, or have some: the tokens of one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.lora_request import LoRARequest
from tests.helpers.adapters import make_adapter
from tests.helpers.head_layouts import LAYOUTS
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 160}
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=1)
SEEDED = SamplingParams(temperature=0.9, seed=5, max_tokens=14, ignore_eos=True)
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {"r": 8, "target_modules": LINEARS},
        {"r": 3, "target_modules": [*LINEARS, "embed_tokens", "lm_head"], "use_dora": True},
        {"r": 4, "target_modules": ["o_proj", "down_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ],
    "gpt2": [
        {"r": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "bias": "all"},
        {"r": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "lora_bias": True},
    ],
    "phi3": [{"r": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], "use_dora": True}],
}


def prompts() -> list[list[int]]:
    return [[(7 * index + 3 * place) % (VOCAB - 5) + 5 for place in range(3 + 20 * index)] for index in range(3)]


def said(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("family", mostly_wide(ADAPTERS, ("llama",)))
def test_ranks_have_their_share_of_adapters(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    directory = tiny_model(family)
    for index, config in enumerate(ADAPTERS[family]):
        make_adapter(directory, tmp_path / str(index), seed=index, lora_alpha=16, **config)
    asked = [None, *(LoRARequest(str(i), i + 1, str(tmp_path / str(i))) for i in range(len(ADAPTERS[family])))]
    found = []
    for sizes in ({}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}):
        with LLM(str(directory), **OPTIONS, **sizes, enable_lora=True, max_loras=3) as llm:
            found.append(
                [
                    said(llm.generate(prompts(), params, lora_request=adapter, use_tqdm=False))
                    for params in (GREEDY, SEEDED)
                    for adapter in asked
                ]
            )
    assert found[1] == found[2] == found[0]
    assert len({str(answers) for answers in found[0]}) == len(found[0])  # each adapter changes something


PROPOSERS = ("draft model", "eagle", "eagle3", "medusa of vLLM", "mtp as in DeepSeek")


@pytest.mark.parametrize("layout", mostly_wide(PROPOSERS, ("draft model",)))
def test_models_draft_for_ranks(layout: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A head is whole at every rank; a model that drafts is shared as its target is, and is right about itself."""
    directory, speculative = tiny_model("llama"), {"num_speculative_tokens": 3, "adaptive": False}
    if layout == "draft model":
        speculative |= {"method": "draft_model", "model": str(directory)}
    else:
        method, head, _ = LAYOUTS[layout](directory, tmp_path / "head")
        speculative |= {"method": method} | ({} if method == "mtp" else {"model": str(head)})
        directory = head if method == "mtp" else directory
    found = []
    for size, more in ((1, {}), (2, {"speculative_config": speculative})):
        with LLM(str(directory), **OPTIONS, tensor_parallel_size=size, **more) as llm:
            found.append([llm.generate(prompts(), params, use_tqdm=False) for params in (GREEDY, SEEDED)])
    assert [said(outputs) for outputs in found[1]] == [said(outputs) for outputs in found[0]]
    drafted = [output.speculation for outputs in found[1] for output in outputs]
    assert all(stats.num_drafted for stats in drafted)
    if layout == "draft model":
        greedy = found[1][0][0].speculation
        assert greedy.num_drafted - greedy.num_accepted < 4
