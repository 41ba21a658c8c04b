"""Weights of few bits on a GPU: the model of the numbers that they hold, with bits of its own where it is promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadence import LLM, SamplingParams
from cadence.core.outputs import RequestOutput
from tests.helpers import oracle
from tests.helpers.random_blocks import READ
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_quantized import FORMS, make_quantized

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

OPTIONS: dict[str, Any] = {"max_model_len": 400, "kv_cache_memory_bytes": 1 << 26}
METHODS = ("fp8", "int8", "int4")
PROMPTS = [{"prompt_token_ids": [3 + (7 * at + number) % 90 for at in range(5 + 40 * number)]} for number in range(6)]


def forced(llm: LLM) -> torch.Tensor:
    """Logprobs of the longest prompt's tokens."""
    (output,) = llm.generate([PROMPTS[-1]], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    tokens = PROMPTS[-1]["prompt_token_ids"][1:]
    found = (output.prompt_logprobs or [])[1:]
    return torch.tensor([entry[token].logprob for token, entry in zip(tokens, found, strict=True) if entry is not None])


def round_weights(model: nn.Module, method: str) -> None:
    """What `packer` makes of the matrices of a model, as numbers."""
    from transformers.pytorch_utils import Conv1D

    from cadence.kernels.triton.lowbit.few_bits import as_fp8, as_int4, as_int8

    makers = {"fp8": as_fp8, "int8": as_int8, "int4": as_int4}
    head = getattr(model, "lm_head", None)
    done: set[int] = set()
    for parameter in model.parameters():
        if parameter.dim() == 3:  # of experts, [experts, rows, cols]
            make = makers[method] if parameter.shape[2] % 64 == 0 or method != "int4" else as_int8
            parameter.data.copy_(torch.stack([make(values).widened() for values in parameter.data]))
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding, Conv1D)) or module.weight.data_ptr() in done:
            continue
        if name.endswith(("wpe", "embed_positions")):
            continue
        inner = isinstance(module, (nn.Linear, Conv1D)) and module is not head
        values = module.weight.data.T.contiguous() if isinstance(module, Conv1D) else module.weight.data
        whole = inner and values.shape[1] % 64 == 0
        make = makers[method] if method != "int4" or whole else as_int8
        rounded = make(values).widened()
        module.weight.data.copy_(rounded.T if isinstance(module, Conv1D) else rounded)
        done.add(module.weight.data_ptr())


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "phi3", "qwen3", "mixtral"])
@pytest.mark.parametrize("method", METHODS)
def test_gives_the_model_of_its_numbers(tiny_model: Callable[[str], Path], family: str, method: str) -> None:
    directory = tiny_model(family)
    reference = oracle.load_oracle(directory)
    plain = oracle.logprobs(reference, PROMPTS[-1]["prompt_token_ids"])
    round_weights(reference, method)
    expected = oracle.logprobs(reference, PROMPTS[-1]["prompt_token_ids"])
    tokens = torch.tensor(PROMPTS[-1]["prompt_token_ids"][1:])
    exact, other = (each[torch.arange(len(tokens)), tokens] for each in (expected, plain))
    found = forced(LLM(str(directory), dtype="float32", quantization=method, **OPTIONS))
    assert (found - exact).abs().max() < 0.05 and (found - exact).abs().mean() < 2e-3
    assert (other - exact).abs().mean() > 4e-3, "the rounding shows"
    halves = forced(LLM(str(directory), dtype="bfloat16", quantization=method, **OPTIONS))
    print(
        f"{family} {method}: bfloat16 {(halves - exact).abs().mean():.4f}, rounding {(other - exact).abs().mean():.4f}"
    )
    assert (halves - exact).abs().mean() < 0.1 + (other - exact).abs().mean()


def said(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens, and logprobs where they were asked for."""
    found = [output.outputs[0] for output in outputs]
    logprobs = [[sorted(entry.logprob for entry in at.values()) for at in one.logprobs or []] for one in found]
    return list(zip([list(one.token_ids) for one in found], logprobs, strict=True))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_in_any_company(tiny_model: Callable[[str], Path], method: str, family: str) -> None:
    check_company(LLM(str(tiny_model(family)), dtype="bfloat16", quantization=method, deterministic=True, **OPTIONS))


@pytest.mark.parametrize("method", ["fp8", "int4"])
def test_stages(tiny_model: Callable[[str], Path], method: str) -> None:
    model = str(tiny_model("llama"))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    options = {"dtype": "float32", "quantization": method, **OPTIONS}
    one = said(LLM(model, **options).generate(PROMPTS, params, use_tqdm=False))
    stages = LLM(model, **options, pipeline_parallel_size=2, device_ids=[0, 0])
    assert said(stages.generate(PROMPTS, params, use_tqdm=False)) == one
    ranks = LLM(model, **options, tensor_parallel_size=2, device_ids=[0, 0])  # scales of slices are their own
    assert all(len(tokens) == 8 for tokens, _ in said(ranks.generate(PROMPTS, params, use_tqdm=False)))


BLOCKS = [kind for kind in READ if kind not in ("F32", "F16", "BF16")]
NARROW = ("FP8 tensor", "FP8 channel", "FP8 block", "fp8 block 128", "INT8 W8A8", "bnb int8")  # activations, too
NEAR = {"float32": 2e-3, "bfloat16": 0.06}  # logprobs of what is computed in other orders, on average


def compare(model: str, dtype: str, most: float) -> None:
    """The engine that keeps a file's numbers beside the one of the same values."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    kept = LLM(model, dtype=dtype, **OPTIONS)
    plain = LLM(model, dtype=dtype, quantization="none", **OPTIONS)
    found, expected = forced(kept), forced(plain)
    error = (found - expected).abs()
    print(f"{model} {dtype}: {error.mean():.5f}, at most {error.max():.5f}")
    assert error.mean() < most and torch.isfinite(found).all()
    assert all(len(tokens) == 16 for tokens, _ in said(kept.generate(PROMPTS, params, use_tqdm=False)))


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_gguf_files(tmp_path: Path, kind: str, dtype: str) -> None:
    compare(str(make_tiny_gguf(tmp_path / "tiny.gguf", kind)), dtype, NEAR[dtype])


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize(("kind", "other"), [("Q4_K", "Q6_K"), ("Q5_0", "Q8_0"), ("Q4_0", "IQ4_XS")])
def test_blocks_of_several_kinds(tmp_path: Path, kind: str, other: str, dtype: str) -> None:
    compare(str(make_tiny_gguf(tmp_path / "tiny.gguf", kind, other)), dtype, NEAR[dtype])


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_checkpoints(tmp_path: Path, form: str, dtype: str) -> None:
    rounds = dtype == "bfloat16" and form in NARROW
    compare(str(make_quantized(form, tmp_path)), dtype, 0.3 if rounds else NEAR["bfloat16"])


EXPERT_FORMS = [
    ("mixtral", "W4A16 asymmetric"),
    ("qwen3_moe", "INT8 W8A8"),
    ("qwen3_moe", "fp8 block 128"),
    ("mixtral", "AWQ"),
    ("qwen3_moe", "GPTQ 4 bits, by activation"),
    ("mixtral", "NVFP4"),
    ("qwen3_moe", "nf4"),
]


@pytest.mark.parametrize(("family", "form"), EXPERT_FORMS)
def test_experts_of_checkpoints(tmp_path: Path, family: str, form: str) -> None:
    """A token may take another expert where what it is made of is rounded."""
    model = str(make_quantized(form, tmp_path, family))
    compare(model, "float32", 0.12)
    compare(model, "bfloat16", 0.4)
    check_company(LLM(model, dtype="bfloat16", deterministic=True, **OPTIONS))


@pytest.mark.parametrize(("kind", "other"), [("Q4_K", "Q6_K"), ("Q4_0", "Q8_0"), ("IQ2_S", "")])
def test_experts_of_gguf_files(tmp_path: Path, kind: str, other: str) -> None:
    model = str(make_tiny_gguf(tmp_path / "tiny.gguf", kind, other, experts=4))
    compare(model, "float32", 0.02)
    compare(model, "bfloat16", 0.4)
    check_company(LLM(model, dtype="bfloat16", deterministic=True, **OPTIONS))


@pytest.mark.parametrize("whole", [False, True], ids=["parts", "whole experts"])
def test_ranks_share_experts_of_checkpoints(tmp_path: Path, whole: bool) -> None:
    model, params = (
        str(make_quantized("W4A16 asymmetric", tmp_path, "qwen3_moe")),
        SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
    )
    options = {"tensor_parallel_size": 2, "device_ids": [0, 0], "enable_expert_parallel": whole}
    ranks, one = LLM(model, dtype="float32", **options, **OPTIONS), LLM(model, dtype="float32", **OPTIONS)
    outputs = [llm.generate(PROMPTS, params, use_tqdm=False) for llm in (one, ranks)]
    firsts = [[output.outputs[0].token_ids[0] for output in each] for each in outputs]
    assert firsts[0] == firsts[1]


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_0", "IQ2_S", "TQ1_0", "MXFP4"])
def test_blocks_have_the_same_bits_in_any_company(tmp_path: Path, kind: str) -> None:
    model = str(make_tiny_gguf(tmp_path / "tiny.gguf", kind, "Q6_K"))
    check_company(LLM(model, dtype="bfloat16", deterministic=True, **OPTIONS))


@pytest.mark.parametrize("form", ["FP8 channel", "fp8 block 128", "INT8 W8A8", "NVFP4", "nf4"])
def test_checkpoints_have_the_same_bits_in_any_company(tmp_path: Path, form: str) -> None:
    check_company(LLM(str(make_quantized(form, tmp_path)), dtype="bfloat16", deterministic=True, **OPTIONS))


def check_company(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=2)
    together = said(llm.generate(PROMPTS, params, use_tqdm=False))
    assert together == [said(llm.generate([prompt], params, use_tqdm=False))[0] for prompt in PROMPTS]


@pytest.mark.parametrize("form", ["FP8 tensor", "FP8 block", "INT8 W8A8", "GPTQ 4 bits, by activation", "AWQ", "fp4"])
def test_ranks_have_slices_of_checkpoints(tmp_path: Path, form: str) -> None:
    model, params = str(make_quantized(form, tmp_path)), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    ranks = LLM(model, dtype="float32", tensor_parallel_size=2, device_ids=[0, 0], **OPTIONS)
    one = LLM(model, dtype="float32", **OPTIONS)
    outputs = [llm.generate(PROMPTS, params, use_tqdm=False) for llm in (one, ranks)]
    firsts = [[output.outputs[0].token_ids[0] for output in each] for each in outputs]
    assert firsts[0] == firsts[1]
