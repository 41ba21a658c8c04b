"""Requests with LoRA adapters: peft's tokens, and in any company and every engine the bits that each has alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.core.lora_request import LoRARequest
from tests.helpers.adapters import make_adapter
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.engine

ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
RANKS = (1, 3, 4, 8, 16, 33, 48, 64)
FEW_SLOTS = ("plain", "bursts of 4, two steps in flight", "prefixes cached", "tiny pool")
SLOTS = {"enable_lora": True, "max_loras": 8, "max_lora_rank": 64}
Asked = tuple[list[int], SamplingParams, LoRARequest | None]


def named(path: Path, number: int = 1) -> LoRARequest:
    return LoRARequest(path.name, number, str(path))


def prompt_of(index: int, length: int) -> list[int]:
    return [(7 * index + 3 * place) % (VOCAB - 5) + 5 for place in range(length)]


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """By PEFT and transformers, without a cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"r": 8, "target_modules": ATTENTION + MLP, "use_rslora": True}),
        ("llama", {"r": 4, "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
        ("gemma2", {"r": 16, "target_modules": ATTENTION, "use_dora": True}),
    ],
)
def test_tokens_are_those_of_peft(
    tiny_model: Callable[[str], Path], tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    directory = tiny_model(family)
    oracle = make_adapter(directory, tmp_path / "one", lora_alpha=16, **config)
    prompts = [prompt_of(index, length) for index, length in enumerate((3, 12, 30))]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    options = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 160}
    with LLM(str(directory), enable_lora=True, max_loras=2, **options) as llm:
        plain = llm.generate(prompts, params, use_tqdm=False)
        outputs = llm.generate(prompts, params, lora_request=named(tmp_path / "one"), use_tqdm=False)
        again = llm.generate(prompts, params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [greedy(oracle, prompt, 12) for prompt in prompts]
    with oracle.disable_adapter():
        base = [greedy(oracle, prompt, 12) for prompt in prompts]
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in again] == base


@pytest.fixture(scope="module")
def adapters(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight, of ranks 1 to 64: some of the attention alone, one with everything there is, of 16 bits and of 32."""
    root, made = tmp_path_factory.mktemp("adapters"), []
    for index, rank in enumerate(RANKS):
        config: dict[str, Any] = {"r": rank, "lora_alpha": 2 * rank**0.5, "target_modules": ATTENTION}
        if index % 3 == 0:
            config |= {"target_modules": ATTENTION + MLP}
        if index == 5:
            config |= {"use_dora": True, "modules_to_save": ["embed_tokens", "lm_head"]}
        dtype = torch.bfloat16 if index % 2 else torch.float32
        make_adapter(tiny_model("llama"), root / str(index), seed=index, dtype=dtype, **config)
        made.append(root / str(index))
    return made


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2, "ignore_eos": True},
    {"temperature": 1.0, "repetition_penalty": 1.2, "logprobs": 1},
    {"temperature": 0, "prompt_logprobs": 1, "logprobs": 1, "ignore_eos": True},
    {"temperature": 0.9, "n": 2, "ignore_eos": True},
]


def work(adapters: Sequence[Path]) -> list[Asked]:
    """Two requests of each adapter, with one prompt for all, and some without an adapter between them."""
    made: list[Asked] = []
    for index, path in enumerate([*adapters, *adapters]):
        common = {"seed": index, "max_tokens": 14, "output_kind": RequestOutputKind.FINAL_ONLY}
        params = SamplingParams(**common, **OPTIONS[index % len(OPTIONS)])
        prompt = prompt_of(0, 3 + 5 * (index % len(adapters)))
        made.append((prompt, params, named(path, index + 1)))
        if index % 3 == 0:
            made.append((prompt, params, None))
    return made


def run(engine: LLMEngine, requests: Sequence[Asked]) -> list[RequestOutput]:
    """All at once -> their last outputs"""
    for index, (prompt, params, adapter) in enumerate(requests):
        engine.add_request(str(index), prompt, params, lora_request=adapter)
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        last.update((output.request_id, output) for output in engine.step() if output.finished)
    return [last[str(index)] for index in range(len(requests))]


@pytest.fixture(scope="module")
def answers(tiny_model: Callable[[str], Path], adapters: list[Path]) -> list[RequestOutput]:
    """Each request alone, in a plain engine with a slot for one."""
    with opened(tiny_model("llama"), **{**SLOTS, "max_loras": 1}) as plain:
        return [run(plain, [request])[0] for request in work(adapters)]


@pytest.mark.parametrize(("way", "graphs"), [*((way, "") for way in WAYS), *((way, "padded") for way in PADDED)])
@pytest.mark.parametrize("slots", [8, 2])
def test_each_has_in_any_company_what_it_has_alone(
    tiny_model: Callable[[str], Path],
    adapters: list[Path],
    answers: list[RequestOutput],
    way: str,
    graphs: str,
    slots: int,
) -> None:
    directory, options = tiny_model("llama"), {**SLOTS, **WAYS[way], "max_loras": slots}
    if slots == 2 and (graphs or way not in FEW_SLOTS):
        pytest.skip("what slots have to do with it is shown by others")
    if "by the model itself" in way:
        options["speculative_config"] = {
            "method": "draft_model", "model": str(directory), "num_speculative_tokens": DRAFTS, "adaptive": False,
        }  # fmt: skip
    with opened(directory, None, graphs, **options) as engine:
        for _ in range(2):
            assert_same(run(engine, work(adapters)), answers, way)


def test_adapters_change_what_is_said(answers: list[RequestOutput]) -> None:
    said = {tuple(output.outputs[0].token_ids) for output in answers}
    assert len(said) > len(answers) * 2 // 3, "adapters that say the same prove little"
