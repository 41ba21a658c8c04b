"""Models that run through transformers' own code: its tokens, and all that other models have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.errors import ConfigError
from cadence.core.lora_request import LoRARequest
from cadence.core.structured_outputs import StructuredOutputsParams
from tests.e2e.test_transformers_parity import PARAMS, check, prompts_of
from tests.helpers import oracle
from tests.helpers.adapters import make_adapter
from tests.helpers.tiny_others import RUNNING, drawn_families, make_other
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 400, "num_gpu_blocks_override": 200, "model_impl": "transformers",
}  # fmt: skip
# A parallel block; windows and logits with a factor; norms over all heads; experts beside one that all tokens share.
ALWAYS = ("gpt_neox", "cohere2", "olmo2", "qwen2_moe")
OURS = ("llama", "gemma2", "qwen3_moe_mixed", "gpt2", "opt_postnorm", "phi3_longrope", "smollm3", "mixtral")
# Their experts multiply by slices of tensors, in products of torch whose last bits depend on the number of tokens.
BY_SLICES = ("aria_text", "beam")
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)


def same(one: list[RequestOutput], other: list[RequestOutput]) -> None:
    for a, b in zip(one, other, strict=True):
        assert list(a.outputs[0].token_ids) == list(b.outputs[0].token_ids)
        assert a.outputs[0].logprobs == b.outputs[0].logprobs


def nearly_same(one: list[RequestOutput], other: list[RequestOutput]) -> None:
    for a, b in zip(one, other, strict=True):
        assert list(a.outputs[0].token_ids) == list(b.outputs[0].token_ids)
        for found, wanted in zip(a.outputs[0].logprobs or [], b.outputs[0].logprobs or [], strict=True):
            by_id = {token: each.logprob for token, each in wanted.items()}
            assert {token: each.logprob for token, each in found.items()} == pytest.approx(by_id, abs=1e-5)


def parity(directory: Path, same: Callable[[list[RequestOutput], list[RequestOutput]], None] = same) -> None:
    """Of prompts of all lengths together, and of one of them alone."""
    reference, prompts = oracle.load_oracle(directory), prompts_of((1, 17, 90))
    params = replace(PARAMS, max_tokens=12)
    with LLM(str(directory), **OPTIONS) as llm:
        together = llm.generate(prompts, params, use_tqdm=False)
        llm.reset_prefix_cache()
        same(llm.generate(prompts[1:2], params, use_tqdm=False), together[1:2])
    for prompt, output in zip(prompts, together, strict=True):
        check(reference, prompt, output)


@pytest.mark.parametrize("family", mostly_wide(sorted({*ALWAYS, *drawn_families(10)}), ALWAYS))
def test_tokens_and_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    parity(make_other(family, tmp_path), nearly_same if family in BY_SLICES else same)


@pytest.mark.parametrize("family", mostly_wide(OURS, ("llama",)))
def test_families_of_ours_give_the_same_through_it(family: str, tiny_model: Callable[[str], Path]) -> None:
    parity(tiny_model(family))


@pytest.mark.wide
@pytest.mark.parametrize("family", sorted(set(RUNNING) - {*ALWAYS, *drawn_families(10)}))
def test_every_other_family_that_runs(family: str, tmp_path: Path) -> None:
    parity(make_other(family, tmp_path), nearly_same if family in BY_SLICES else same)


@pytest.fixture(scope="module")
def plain(tiny_model: Callable[[str], Path]) -> list[RequestOutput]:
    """One request after another."""
    outputs = []
    with LLM(str(tiny_model("llama")), **OPTIONS, enable_prefix_caching=False, num_scheduler_steps=1) as llm:
        for prompt in prompts_of((3, 40, 90)):
            outputs += llm.generate(prompt, GREEDY, use_tqdm=False)
    return outputs


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"num_scheduler_steps": 8},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
    ],
    ids=["in pieces", "bursts", "n-grams", "suffixes"],
)
def test_the_same_bits_in_any_company(
    tiny_model: Callable[[str], Path], plain: list[RequestOutput], options: dict[str, Any]
) -> None:
    prompts = prompts_of((3, 40, 90))
    with LLM(str(tiny_model("llama")), **OPTIONS, **options) as llm:
        same(llm.generate(prompts, GREEDY, use_tqdm=False), plain)
        same(llm.generate(prompts, GREEDY, use_tqdm=False), plain)  # out of the prefix cache


@pytest.mark.wide
@pytest.mark.parametrize("family", ("llama", "qwen2_moe", "granite", "glm4"))
def test_ranks_share_layers_whose_attention_is_ours(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = tiny_model(family) if family == "llama" else make_other(family, tmp_path)
    found = []
    for size in (1, 2):
        with LLM(str(directory), **OPTIONS, tensor_parallel_size=size) as llm:
            found.append(llm.generate(prompts_of((3, 40)), GREEDY, use_tqdm=False))
    for one, both in zip(*found, strict=True):
        assert list(one.outputs[0].token_ids) == list(both.outputs[0].token_ids)


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"dtype": "bfloat16"}], ids=["int8", "bfloat16"])
def test_numbers_of_fewer_bits_are_those_of_our_own_code(
    tiny_model: Callable[[str], Path], options: dict[str, Any]
) -> None:
    """Logprobs are near each other: of bfloat16, rotations and sums are rounded elsewhere."""
    prompts = prompts_of((3, 40))
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = []
    for code in ("cadence", "transformers"):
        with LLM(str(tiny_model("llama")), **OPTIONS | options | {"model_impl": code}) as llm:
            found.append(llm.generate(prompts, params, use_tqdm=False))
    for ours, theirs, prompt in zip(*found, prompts, strict=True):
        for place, token in list(enumerate(prompt))[1:]:
            one, other = (out.prompt_logprobs[place][token].logprob for out in (ours, theirs))
            assert one == pytest.approx(other, abs=0.25 if "dtype" in options else 1e-3)


def test_adapters_are_those_of_peft(tmp_path: Path) -> None:
    """Of a parallel block, whose matrices are named otherwise than Llama's."""
    directory = make_other("gpt_neox", tmp_path / "model")
    modules = ["query_key_value", "dense", "dense_4h_to_h"]
    adapted = make_adapter(directory, tmp_path / "one", r=8, lora_alpha=16, target_modules=modules)
    prompts = prompts_of((3, 30))
    request = LoRARequest("one", 1, str(tmp_path / "one"))
    with LLM(str(directory), **OPTIONS, enable_lora=True) as llm:
        outputs = llm.generate(prompts, GREEDY, lora_request=request, use_tqdm=False)
        without = llm.generate(prompts, GREEDY, use_tqdm=False)
    for prompt, output, bare in zip(prompts, outputs, without, strict=True):
        tokens = list(output.outputs[0].token_ids)
        assert tokens == oracle.likeliest(adapted, prompt, tokens) != list(bare.outputs[0].token_ids)


def test_structured_output_and_sampling(tiny_model: Callable[[str], Path]) -> None:
    params = SamplingParams(
        temperature=0.8, seed=5, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}-[a-f]{4}")
    )
    found = []
    for code in ("cadence", "transformers"):
        with LLM(str(tiny_model("llama")), **OPTIONS | {"model_impl": code}) as llm:
            found.append(llm.generate(prompts_of((9,)), params, use_tqdm=False)[0].outputs[0].text)
    assert found[0] == found[1] and len(found[0]) == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2: its layers are not shared out"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}, "mtp reads hidden states of layers"),
    ],
)
def test_what_it_is_not_asked_for(tiny_model: Callable[[str], Path], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LLM(str(tiny_model("llama")), **OPTIONS, **options)
