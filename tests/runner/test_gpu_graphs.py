"""Graphs, bursts and the loop that never waits, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.runner import shapes
from tests.e2e.test_promise import NUM_REQUESTS, requests, run

pytestmark = [pytest.mark.engine, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def _bursts_are_captured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_WORTH_RECORDING", 1)


OPTIONS = {"max_model_len": 400, "kv_cache_memory_bytes": 2**28, "dtype": "float32"}
WAYS: dict[str, dict[str, Any]] = {
    "graphs, automatic": {},
    "graphs, bursts of 8": {"num_scheduler_steps": 8},
    "graphs, bursts of 5, plain depth": {"num_scheduler_steps": 5, "async_scheduling": False},
    "eager, bursts of 4": {"num_scheduler_steps": 4, "enforce_eager": True},
    "graphs, chunks": {"max_num_batched_tokens": 32, "max_num_seqs": 16},
    "graphs, tiny pool": {"num_gpu_blocks_override": 60, "num_scheduler_steps": 4},
}


def draws(vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    """Requests that want tokens and nothing else: their sampling lies inside the graph."""
    work = []
    for index in range(30):
        prompt = [(index * 37 + step * 11) % (vocab_size - 3) + 3 for step in range(1 + index * 3)]
        heat = 0.0 if index % 2 else 0.9
        work.append(
            (prompt, SamplingParams(temperature=heat, seed=index, max_tokens=5 + index, ignore_eos=index % 3 > 0))
        )
    return work


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("way", WAYS)
def test_graphs_and_bursts_give_the_eager_tokens(tiny_model: Callable[[str], Path], family: str, way: str) -> None:
    directory = str(tiny_model(family))
    plain = LLM(directory, **OPTIONS, enforce_eager=True, num_scheduler_steps=1, async_scheduling=False)
    tested = LLM(directory, **OPTIONS, **WAYS[way])
    work = requests(plain.get_tokenizer().vocab_size)
    order = list(range(NUM_REQUESTS))
    expected, found = run(plain, order, work), run(tested, order, work)
    for index in order:
        assert found[index].token_ids == expected[index].token_ids, index
        assert found[index].logprobs == pytest.approx(expected[index].logprobs, abs=1e-4), index
    prompts, params = map(list, zip(*draws(plain.get_tokenizer().vocab_size), strict=True))
    for one, other in zip(plain.generate(prompts, params), tested.generate(prompts, params), strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize("eager", [False, True])
def test_no_step_waits_for_the_device(tiny_model: Callable[[str], Path], eager: bool, steps: int) -> None:
    """Torch raises on every call that would stop the host until the device is done."""
    llm = LLM(str(tiny_model("llama")), **OPTIONS, enforce_eager=eager, num_scheduler_steps=steps)
    work = requests(llm.get_tokenizer().vocab_size)
    plain = draws(llm.get_tokenizer().vocab_size)
    run(llm, list(range(NUM_REQUESTS)), work)  # compiles and captures
    llm.generate([prompt for prompt, _ in plain], [params for _, params in plain], use_tqdm=False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(llm, list(range(NUM_REQUESTS)), work)
        llm.generate([prompt for prompt, _ in plain], [params for _, params in plain], use_tqdm=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_bfloat16_graphs_stay_close_to_eager(tiny_model: Callable[[str], Path]) -> None:
    """Padding may change which kernel a product takes: tokens mostly agree, and logprobs to bfloat16's reach."""
    options = OPTIONS | {"dtype": "bfloat16"}
    directory = str(tiny_model("llama"))
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=1)
    prompts = [[(7 * index + step) % 300 + 3 for step in range(20)] for index in range(13)]
    eager = LLM(directory, **options, enforce_eager=True).generate(prompts, params, use_tqdm=False)
    captured = LLM(directory, **options).generate(prompts, params, use_tqdm=False)
    agree = total = 0
    for one, other in zip(eager, captured, strict=True):
        for ours, theirs in zip(one.outputs[0].token_ids, other.outputs[0].token_ids, strict=True):
            total += 1
            if ours != theirs:
                break  # from here on the texts differ
            agree += 1
    print(f"agreement until the first difference: {agree}/{total}")
    assert agree / total > 0.8


DETERMINISTIC_WAYS: dict[str, dict[str, Any]] = {
    "together": {"max_num_seqs": 48},
    "chunks": {"max_num_batched_tokens": 32, "max_num_seqs": 16},
    "one by one": {"max_num_seqs": 1},
    "tiny pool, bursts": {"num_gpu_blocks_override": 60, "num_scheduler_steps": 4},
    "eager": {"enforce_eager": True, "enable_prefix_caching": False},
}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_deterministic_gives_the_same_bits_in_any_company(tiny_model: Callable[[str], Path], family: str) -> None:
    """bfloat16, where another order of summing shows at once: logprobs are compared bit for bit."""
    options = OPTIONS | {"dtype": "bfloat16", "deterministic": True}
    order = list(range(NUM_REQUESTS))
    found = {}
    for way, changes in DETERMINISTIC_WAYS.items():
        llm = LLM(str(tiny_model(family)), **options, **changes)
        found[way] = run(llm, order, requests(llm.get_tokenizer().vocab_size))
    for way, answers in found.items():
        for index in order:
            assert answers[index].token_ids == found["together"][index].token_ids, (way, index)
            assert answers[index].logprobs == found["together"][index].logprobs, (way, index)
