"""The promise on a CPU, bit for bit: every form of weights gives the same logprobs in any company."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM
from tests.e2e.test_promise import DRAFTS, Answer, requests, run
from tests.helpers.tiny_gguf import BLOCKS, make_tiny_gguf
from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_quantized import make_quantized
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

COUNT = 6
# A pool of 18 blocks does not hold all of them to their end.
WAYS: dict[str, dict[str, Any]] = {
    "together": {"max_num_seqs": 32, "num_scheduler_steps": 1},
    "chunks of 16, depth 2": {"max_num_batched_tokens": 16, "max_num_seqs": 16, "async_scheduling": True},
    "tiny pool, bursts of 4": {"num_gpu_blocks_override": 18, "max_num_seqs": 32, "num_scheduler_steps": 4},
    "launched op by op": {"enforce_eager": True, "max_num_seqs": 8},
    "drafts, bursts of 4": {"speculative_config": DRAFTS, "max_num_seqs": 8, "num_scheduler_steps": 4},
}
ALONE = {"max_num_seqs": 1, "enable_prefix_caching": False}
CODES = ("IQ4_NL", "IQ4_XS", "MXFP4", "Q3_K", "Q2_K")  # looked up in tables, and two bits
CHECKPOINTS = (
    "W4A16 group 32, all of it",
    "AWQ",
    "INT8 W8A8",
    "GPTQ 8 bits",
    "GPTQ 4 bits, by activation",
    "FP8 channel",
    "nf4, twice",
    "W8A16 asymmetric",
)
FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16 weights": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"quantization": "int8", "dtype": "float32"},
    "int4": {"quantization": "int4", "dtype": "float32"},
    **{f"{kind} blocks": {"dtype": "float32"} for kind in (*BLOCKS, *CODES)},
    "Q4_1 blocks, bfloat16": {"dtype": "bfloat16"},
    **{f"{form} checkpoint": {} for form in CHECKPOINTS},
}
# The kernels of each are held to their bits in tests/kernels/test_packed_cpu.py; checkpoints with experts, to the same
# bits in company and alone in test_quantized_experts.py.
SOME = ("int8", "Q4_1 blocks, bfloat16")


@pytest.fixture(scope="module")
def model_of(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    def find(form: str) -> str:
        if "checkpoint" in form:
            return str(make_quantized(form.removesuffix(" checkpoint"), tmp_path_factory.mktemp("quantised")))
        if "blocks" in form:
            kind = form.split()[0]
            return str(make_tiny_gguf(tmp_path_factory.mktemp("gguf") / f"{kind}.gguf", kind))
        if "bfloat16" in form:
            return str(make_tiny("llama", tmp_path_factory.mktemp("bfloat16"), dtype=torch.bfloat16))
        return str(tiny_model("llama"))

    return find


@pytest.mark.parametrize("form", mostly_wide(FORMS, SOME))
def test_the_same_bits_in_any_company(model_of: Callable[[str], str], form: str) -> None:
    """No sum may change its order with the batch, a prompt's chunks, a prefix found, a replay or a preemption."""
    model, work = model_of(form), requests(300)[:COUNT]
    for _, params in work:
        params.ignore_eos = True  # how long they are, and so what the pool holds, is the same on every machine

    def answers(options: dict[str, Any], orders: list[list[int]]) -> list[dict[int, Answer]]:
        llm = LLM(model, max_model_len=256, **{"num_gpu_blocks_override": 1000, **FORMS[form], **options})
        return [run(llm, order, work) for order in orders]

    in_order = list(range(COUNT))
    expected = answers(ALONE, [in_order])[0]
    assert len({token for answer in expected.values() for token in answer.token_ids}) > 60  # it does say something
    shuffled = random.Random(3).sample(in_order, COUNT)
    for way, options in WAYS.items():
        found = answers(options, [shuffled, in_order] if way == "together" else [shuffled])
        if "tiny pool" in way:
            assert any(answer.preemptions for answer in found[0].values())
        if "drafts" in way:
            assert sum(answer.drafts.num_drafted for answer in found[0].values()) > COUNT
        for index, answer in ((i, answer) for answers in found for i, answer in answers.items()):
            assert answer.token_ids == expected[index].token_ids, (way, index)
            assert answer.logprobs == expected[index].logprobs, (way, index)
