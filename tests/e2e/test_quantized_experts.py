"""Models with experts in the formats of quantised checkpoints: what transformers gives with the values that they stand
for; and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import LLM
from tests.e2e.test_quantized_checkpoints import NUM_TOKENS, OPTIONS, PARAMS, WIDENED, differences, prompts
from tests.helpers import oracle
from tests.helpers.tiny_quantized import FORMS, make_quantized

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
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    found: dict[tuple[str, str], Path] = {}

    def get(family: str, form: str) -> Path:
        if (family, form) not in found:
            found[family, form] = make_quantized(form, tmp_path_factory.mktemp("form"), family)
        return found[family, form]

    return get


@pytest.mark.parametrize(("family", "form"), CASES)
def test_experts_are_what_the_checkpoint_holds(made: Callable[[str, str], Path], family: str, form: str) -> None:
    model = made(family, form)
    reference = oracle.load_oracle(model.parent / "plain")
    with LLM(str(model), quantization="none", **OPTIONS) as llm:
        for prompt, output in zip(prompts(), llm.generate(prompts(), PARAMS, use_tqdm=False), strict=True):
            assert list(output.outputs[0].token_ids) == oracle.greedy(reference, prompt, NUM_TOKENS)
            assert max(differences(reference, prompt, output)) < WIDENED
    with LLM(str(model), **OPTIONS) as llm:
        outputs = llm.generate(prompts(), PARAMS, use_tqdm=False)
        alone = [llm.generate([prompt], PARAMS, use_tqdm=False)[0] for prompt in prompts()]
    found = [each for p, out in zip(prompts(), outputs, strict=True) for each in differences(reference, p, out)]
    print(f"{family} {form}: mean {sum(found) / len(found):.4f}, largest {max(found):.4f}")
    packed = FORMS[form].exact
    assert sum(found) / len(found) < ROUTED and (packed or max(found) < WIDENED)
    assert [out.outputs[0].logprobs for out in outputs] == [out.outputs[0].logprobs for out in alone]
