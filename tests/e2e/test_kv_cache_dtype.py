"""The KV cache in a type of its own on the CPU: the same bits in any company, near the whole numbers, and smaller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from tests.e2e.test_promise import answer, requests, run
from tests.e2e.test_quantization import logprobs_of
from tests.helpers.tiny_quantized import add_scales, make_quantized
from tests.helpers.wide import mostly_wide, mostly_wide_rows

pytestmark = pytest.mark.engine

COUNT = 12
KINDS = ("float32", "fp8", "int8")
OPTIONS = {"max_model_len": 256, "dtype": "float32"}
POOL = {"num_gpu_blocks_override": 600}  # a small one is made in no time
WAYS: dict[str, dict[str, Any]] = {
    "together": {"max_num_seqs": 32, "num_scheduler_steps": 1},
    "one by one": {"max_num_seqs": 1, "enable_prefix_caching": False},
    "chunks of 16, depth 2": {"max_num_batched_tokens": 16, "max_num_seqs": 16, "async_scheduling": True},
    "tiny pool, bursts of 4": {"num_gpu_blocks_override": 34, "max_num_seqs": 32, "num_scheduler_steps": 4},
    "launched op by op": {"enforce_eager": True},
}


CACHES = [
    *[("llama", dtype) for dtype in ("int8", "int4", "fp8", "fp8_e5m2", "bfloat16", "float16")],
    *[("gemma2", dtype) for dtype in ("int8", "int4", "fp8")],
]
ALWAYS = [("llama", "int4"), ("gemma2", "fp8")]


@pytest.mark.parametrize(("family", "dtype"), mostly_wide_rows(CACHES, ALWAYS))
def test_the_same_bits_in_any_company(tiny_model: Callable[[str], Path], family: str, dtype: str) -> None:
    """Logprobs are compared bit for bit. Gemma 2 has windows and soft-caps."""
    found = {}
    for way, changes in WAYS.items():
        llm = LLM(str(tiny_model(family)), kv_cache_dtype=dtype, **{**POOL, **OPTIONS, **changes})
        work = requests(llm.get_tokenizer().vocab_size)
        found[way] = run(llm, list(range(COUNT)), work)
        if way == "together":
            found["from the prefix cache"] = run(llm, list(range(COUNT))[::-1], work)
    assert any(reply.preemptions for reply in found["tiny pool, bursts of 4"].values())
    for way, answers in found.items():
        for index in range(COUNT):
            assert answers[index].token_ids == found["one by one"][index].token_ids, (way, index)
            assert answers[index].logprobs == found["one by one"][index].logprobs, (way, index)


def test_several_samples_of_one_prompt(tiny_model: Callable[[str], Path]) -> None:
    llm = LLM(str(tiny_model("llama")), kv_cache_dtype="int8", **OPTIONS)
    prompt, params = list(range(5, 45)), {"temperature": 1.0, "max_tokens": 12, "logprobs": 0}
    together = llm.generate([prompt], SamplingParams(n=3, seed=7, **params), use_tqdm=False)[0]
    again = llm.generate([prompt], SamplingParams(n=3, seed=7, **params), use_tqdm=False)[0]
    assert len({tuple(output.token_ids) for output in together.outputs}) == 3
    assert [output.logprobs for output in again.outputs] == [output.logprobs for output in together.outputs]


@pytest.mark.parametrize(
    ("dtype", "times"), [("int8", 4 * 16 / (16 + 4)), ("fp8", 3.2), ("int4", 3.2), ("bfloat16", 2)]
)
def test_more_blocks_in_the_same_memory(tiny_model: Callable[[str], Path], dtype: str, times: float) -> None:
    """Heads of the tiny model have 16 entries; of 64, int8 rows hold 4 * 64 / 68 times as many as float32, and those of
    int4, whose runs are of 32, 4 * 64 / 40 times."""
    options = {**OPTIONS, "kv_cache_memory_bytes": 2**22}
    whole, narrow = (LLM(str(tiny_model("llama")), kv_cache_dtype=kind, **options) for kind in ("auto", dtype))
    assert narrow.llm_engine.num_blocks == pytest.approx(whole.llm_engine.num_blocks * times, rel=0.01)


NEARNESS = [("int8", 0.06), ("fp8", 0.12), ("fp8_e5m2", 0.24), ("int4", 0.4), ("bfloat16", 0.02), ("float16", 0.01)]


@pytest.fixture(scope="module")
def whole() -> list[float]:
    return logprobs_of(LLM("smollm2", **OPTIONS, **POOL, quantization="none"))


@pytest.mark.parametrize(("dtype", "nearness"), mostly_wide_rows(NEARNESS, [("int8", 0.06)]))
def test_smollm2_stays_near_itself(whole: list[float], dtype: str, nearness: float) -> None:
    """Mean difference of the logprobs of a text."""
    options = {**OPTIONS, **POOL, "quantization": "none"}
    ours = logprobs_of(LLM("smollm2", kv_cache_dtype=dtype, **options))
    mean = mean_difference(ours, whole)
    print(f"{dtype}: mean difference of logprobs {mean:.4f}")
    assert 0 < mean < nearness


@pytest.mark.parametrize("dtype", mostly_wide(["int8", "fp8", "fp8_e5m2", "int4"], ["fp8", "int4"]))
def test_the_reference_takes_them_too(tiny_model: Callable[[str], Path], dtype: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=0)
    found = []
    for kernels in ("cpu", "reference"):
        llm = LLM(str(tiny_model("llama")), kv_cache_dtype=dtype, kernels=kernels, **OPTIONS, **POOL)
        found.append(answer(llm.generate([list(range(3, 60))], params, use_tqdm=False)[0]))
    assert found[0].token_ids == found[1].token_ids
    near = 2e-2 if dtype == "int4" else 5e-3  # in another order of sums a number may be rounded to the next of sixteen
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=near)


def test_scales_of_the_checkpoint(tmp_path: Path) -> None:
    """Of keys and values of a layer, as compressed-tensors names them: a cache of float8 keeps multiples of them,
    others know nothing of them. At last that of one layer is too small, and its values are cut."""
    folder = make_quantized("FP8 channel", tmp_path)
    plain = {kind: logprobs_of(LLM(str(folder), kv_cache_dtype=kind, **OPTIONS, **POOL)) for kind in KINDS}
    add_scales(folder, {0: (0.02, 0.01), 1: (0.02, 0.01)})
    for kind, before in plain.items():
        scaled = logprobs_of(LLM(str(folder), kv_cache_dtype=kind, **OPTIONS, **POOL))
        wrong = mean_difference(scaled, plain["float32"])
        if kind == "fp8":
            assert scaled != before and wrong < 0.15
        else:
            assert scaled == before
    add_scales(folder, {1: (0.02, 1e-5)})
    cut = logprobs_of(LLM(str(folder), kv_cache_dtype="fp8", **OPTIONS, **POOL))
    assert mean_difference(cut, plain["float32"]) > 0.2


def mean_difference(ours: list[float], others: list[float]) -> float:
    return sum(abs(one - other) for one, other in zip(ours, others, strict=True)) / len(others)
