"""The KV cache in eight bits on a GPU: near the model's own type, and with the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, SamplingParams
from tests.e2e.test_gpu_quant import PROMPTS, forced, said
from tests.e2e.test_promise import requests, run

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

TYPES = ("fp8_e4m3", "fp8_e5m2", "int8")
OPTIONS: dict[str, Any] = {"max_model_len": 400, "kv_cache_memory_bytes": 1 << 26}
NEAR = {"int8": 0.03, "fp8_e4m3": 0.16, "fp8_e5m2": 0.28}  # mean difference of logprobs, beside float32 caches
COUNT = 12
WAYS: dict[str, dict[str, Any]] = {
    "together": {"max_num_seqs": 32, "num_scheduler_steps": 1},
    "one by one": {"max_num_seqs": 1, "enable_prefix_caching": False},
    "chunks of 16": {"max_num_batched_tokens": 16, "max_num_seqs": 16, "async_scheduling": True},
    "tiny pool, bursts of 4": {"num_gpu_blocks_override": 36, "max_num_seqs": 32, "num_scheduler_steps": 4},
    "launched op by op": {"enforce_eager": True},
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize("kind", TYPES)
def test_stays_near_itself(tiny_model: Callable[[str], Path], family: str, kind: str) -> None:
    """In float32, so that nothing but the cache differs; and in bfloat16, whose own error comes on top."""
    model = str(tiny_model(family))
    exact = forced(LLM(model, dtype="float32", **OPTIONS))
    for dtype, more in (("float32", 0.0), ("bfloat16", 0.1)):
        for fixed in (False, True):
            llm = LLM(model, dtype=dtype, kv_cache_dtype=kind, deterministic=fixed, **OPTIONS)
            wrong = (forced(llm) - exact).abs().mean()
            print(f"{family} {kind} {dtype} deterministic={fixed}: mean difference of logprobs {wrong:.4f}")
            assert 0.0 < wrong < NEAR[kind] + more


@pytest.mark.parametrize("kind", TYPES)
def test_what_a_cpu_computes(tiny_model: Callable[[str], Path], kind: str) -> None:
    """Float32 on both sides: what is stored is the same but where rounding has a tie; int8 queries are whole here."""
    model = str(tiny_model("llama"))
    here = forced(LLM(model, dtype="float32", kv_cache_dtype=kind, device="cpu", max_model_len=400))
    there = forced(LLM(model, dtype="float32", kv_cache_dtype=kind, **OPTIONS))
    assert (here - there).abs().mean() < (0.02 if kind == "int8" else 5e-3)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("kind", TYPES)
def test_the_same_bits_in_any_company(tiny_model: Callable[[str], Path], family: str, kind: str) -> None:
    options = {"dtype": "bfloat16", "kv_cache_dtype": kind, "deterministic": True, "max_model_len": 256}
    found = {}
    for way, changes in WAYS.items():
        if "tiny pool" in way and family == "llama":
            changes = {**changes, "num_gpu_blocks_override": 22}  # one group of layers
        llm = LLM(str(tiny_model(family)), **{**options, "kv_cache_memory_bytes": 1 << 26, **changes})
        work = requests(llm.get_tokenizer().vocab_size)
        found[way] = run(llm, list(range(COUNT)), work)
        if way == "together":
            found["from the prefix cache"] = run(llm, list(range(COUNT))[::-1], work)
    assert any(reply.preemptions for reply in found["tiny pool, bursts of 4"].values())
    for way, answers in found.items():
        for index in range(COUNT):
            assert answers[index].token_ids == found["one by one"][index].token_ids, (way, index)
            assert answers[index].logprobs == found["one by one"][index].logprobs, (way, index)


@pytest.mark.parametrize("kind", TYPES)
def test_speculation_changes_no_token(tiny_model: Callable[[str], Path], kind: str) -> None:
    options = {"dtype": "bfloat16", "kv_cache_dtype": kind, "deterministic": True, **OPTIONS}
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=48, ignore_eos=True, logprobs=2)
    plain = said(LLM(str(tiny_model("llama")), **options).generate(PROMPTS, params, use_tqdm=False))
    drafted = LLM(str(tiny_model("llama")), **options, speculative_config=NGRAM)
    assert said(drafted.generate(PROMPTS, params, use_tqdm=False)) == plain


@pytest.mark.parametrize("kind", ["fp8_e4m3", "int8"])
def test_ranks_and_stages(tiny_model: Callable[[str], Path], kind: str) -> None:
    model = str(tiny_model("llama"))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    options = {"dtype": "float32", "kv_cache_dtype": kind, **OPTIONS}
    one = said(LLM(model, **options).generate(PROMPTS, params, use_tqdm=False))
    for shared in ({"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}):
        several = LLM(model, **options, **shared, device_ids=[0, 0])
        assert [tokens for tokens, _ in said(several.generate(PROMPTS, params, use_tqdm=False))] == [
            tokens for tokens, _ in one
        ]


def test_more_blocks_in_the_same_memory(tiny_model: Callable[[str], Path]) -> None:
    model = str(tiny_model("llama"))
    plain, narrow = (LLM(model, dtype="bfloat16", kv_cache_dtype=kind, **OPTIONS) for kind in ("auto", "fp8"))
    times = 2 * 16 / (16 + 4)  # heads of 16 entries
    assert narrow.llm_engine.num_blocks == pytest.approx(plain.llm_engine.num_blocks * times, rel=0.01)


def test_stored_rows_survive_a_long_text(tiny_model: Callable[[str], Path]) -> None:
    """Decoding 200 tokens greedily: caches that grew token by token give what a prompt of all these tokens gives."""
    llm = LLM(str(tiny_model("llama")), dtype="float32", kv_cache_dtype="fp8", deterministic=True, **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, logprobs=0)
    (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    tokens = list(output.outputs[0].token_ids)
    whole = {"prompt_token_ids": [*PROMPTS[0]["prompt_token_ids"], *tokens]}
    (again,) = llm.generate([whole], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    grown = [entry[token].logprob for token, entry in zip(tokens, output.outputs[0].logprobs or [], strict=True)]
    found = (again.prompt_logprobs or [])[-len(tokens) :]
    read = [entry[token].logprob for token, entry in zip(tokens, found, strict=True) if entry is not None]
    torch.testing.assert_close(torch.tensor(read), torch.tensor(grown), rtol=0, atol=1e-4)
