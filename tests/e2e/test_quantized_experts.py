"""Models with experts in the formats of quantised checkpoints: what transformers gives with the values that they stand
for; and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM
from tests.e2e.test_quantized_checkpoints import NUM_TOKENS, OPTIONS, PARAMS, WIDENED, differences, prompts
from tests.helpers import oracle
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_quantized import FORMS, make_quantized
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.engine

# Mean difference of logprobs where activations meet a quantised matrix in 8 bits: now and then a token then takes
# another expert than transformers' does, so that there is no bound on the largest.
ROUTED = 0.12
CASES = [
    ("mixtral", "W4A16 group 128"),
    ("qwen3_moe", "W4A16 asymmetric"),
    ("qwen3_moe", "INT8 W8A8"),
    ("mixtral", "FP8 channel"),
    ("qwen3_moe", "fp8 block 128"),
    ("mixtral", "GPTQ 4 bits"),
    ("qwen3_moe", "GPTQ 4 bits, by activation"),
    ("mixtral", "AWQ"),
    ("qwen3_moe", "MXFP4"),
    ("mixtral", "nf4, twice"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    found: dict[tuple[str, str], Path] = {}

    def get(family: str, form: str) -> Path:
        if (family, form) not in found:
            found[family, form] = make_quantized(form, tmp_path_factory.mktemp("form"), family)
        return found[family, form]

    return get


# Four bits in groups, eight bits of both sides, columns in an order of their own.
SOME = [
    ("mixtral", "W4A16 group 128"),
    ("qwen3_moe", "INT8 W8A8"),
    ("qwen3_moe", "GPTQ 4 bits, by activation"),
]


@pytest.mark.parametrize(("family", "form"), mostly_wide_rows(CASES, SOME))
def test_experts_are_what_the_checkpoint_holds(made: Callable[[str, str], Path], family: str, form: str) -> None:
    model = made(family, form)
    reference = oracle.load_oracle(model.parent / "plain")
    with LLM(str(model), quantization="none", **OPTIONS) as llm:
        for prompt, output in zip(prompts(), llm.generate(prompts(), PARAMS, use_tqdm=False), strict=True):
            tokens = list(output.outputs[0].token_ids)
            assert len(tokens) == NUM_TOKENS and tokens == oracle.likeliest(reference, prompt, tokens)
            assert max(differences(reference, prompt, output)) < WIDENED
    with LLM(str(model), **OPTIONS) as llm:
        outputs = llm.generate(prompts(), PARAMS, use_tqdm=False)
        alone = [llm.generate([prompt], PARAMS, use_tqdm=False)[0] for prompt in prompts()]
    found = [each for p, out in zip(prompts(), outputs, strict=True) for each in differences(reference, p, out)]
    print(f"{family} {form}: mean {sum(found) / len(found):.4f}, largest {max(found):.4f}")
    packed = FORMS[form].exact
    assert sum(found) / len(found) < ROUTED and (packed or max(found) < WIDENED)
    assert [out.outputs[0].logprobs for out in outputs] == [out.outputs[0].logprobs for out in alone]


def forced(model: Path, **options: Any) -> tuple[list[float], list[Any]]:
    """Logprobs of prompts' tokens, and those of what follows them."""
    params = replace(PARAMS, max_tokens=4)
    with LLM(str(model), **OPTIONS | options) as llm:
        outputs = llm.generate(prompts(), params, use_tqdm=False)
    pairs = [(p[1:], (out.prompt_logprobs or [])[1:]) for p, out in zip(prompts(), outputs, strict=True)]
    found = [place[t].logprob for own, places in pairs for t, place in zip(own, places, strict=True) if place]
    return found, [out.outputs[0].logprobs for out in outputs]


@pytest.mark.parametrize(("kind", "other"), mostly_wide_rows([("Q4_K", "Q6_K"), ("Q4_0", "")], [("Q4_K", "Q6_K")]))
def test_experts_of_gguf_files(tmp_path: Path, kind: str, other: str) -> None:
    """Beside the plain engine with the values of its blocks; `tests/gguf/test_weights.py` has which tensor is what."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf", kind, other, experts=4)
    plain, _ = forced(path, kernels="reference")
    widened, _ = forced(path, quantization="none")
    kept, following = forced(path)
    assert max(abs(a - b) for a, b in zip(widened, plain, strict=True)) < WIDENED
    assert 0 < sum(abs(a - b) for a, b in zip(kept, plain, strict=True)) / len(plain) < ROUTED
    assert following == forced(path, max_num_batched_tokens=16)[1]
