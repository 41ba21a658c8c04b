"""Models that see, on a GPU: the tokens of the CPU, alone and in company, in chunks and in recorded forwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import LLM, SamplingParams
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.helpers.tiny_vision import make_vision

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

SIGNS = {"gemma3": "<start_of_image>", "qwen": "<|vision_start|><|image_pad|><|vision_end|>"}
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
BASE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 300}


def prompts(family: str) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    first, second, long = (
        rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in ((40, 30), (28, 28), (20, 90))
    )
    asked = [
        ("what is IMAGE the quick brown fox", [first]),
        ("IMAGE and IMAGE one two three", [second, long]),
        ("to be or not to be", []),
        ("IMAGE", [first]),
    ]
    return [
        {"prompt": text.replace("IMAGE", SIGNS.get(family, "<image>"))}
        | ({"multi_modal_data": {"image": pictures}} if pictures else {})
        for text, pictures in asked
    ]


@pytest.mark.parametrize("family", ["llava", "gemma3", "smolvlm", "llava_next", "qwen"])
def test_a_gpu_sees_what_a_cpu_sees(family: str, tmp_path: Path) -> None:
    directory = tmp_path / family
    make_qwen_vl("2.5", directory) if family == "qwen" else make_vision(family, directory)
    asked = prompts(family)
    with LLM(model=str(directory), device="cpu", **BASE) as llm:
        expected = [output.outputs[0] for output in llm.generate(asked, PARAMS, use_tqdm=False)]
    small = {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 23, "deterministic": True}
    with LLM(model=str(directory), **BASE, **small) as llm:
        together = [output.outputs[0] for output in llm.generate(asked, PARAMS, use_tqdm=False)]
        llm.reset_prefix_cache()
        alone = [llm.generate(each, PARAMS, use_tqdm=False)[0].outputs[0] for each in asked]
    assert [each.token_ids for each in together] == [each.token_ids for each in expected]
    assert [each.token_ids for each in alone] == [each.token_ids for each in together]
    assert [each.cumulative_logprob for each in alone] == [each.cumulative_logprob for each in together]
    for ours, theirs in zip(together, expected, strict=True):
        assert ours.cumulative_logprob == pytest.approx(theirs.cumulative_logprob, abs=1e-2)


@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_a_model_that_drafts_sees_pictures(family: str, tmp_path: Path) -> None:
    """The target itself, whose drafts are right, but those after a request's last token."""
    directory, asked = tmp_path / family, prompts(family)
    make_qwen_vl("2", directory) if family == "qwen" else make_vision(family, directory)
    options = {**BASE, "deterministic": True, "long_prefill_token_threshold": 7}
    drafts = {"method": "draft_model", "model": str(directory), "num_speculative_tokens": 3, "adaptive": False}
    with LLM(model=str(directory), **options) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(asked, PARAMS, use_tqdm=False)]
    with LLM(model=str(directory), **options, speculative_config=drafts) as llm:
        for _ in range(2):
            found = llm.generate(asked, PARAMS, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in found] == expected
            assert all(each.speculation.num_drafted - each.speculation.num_accepted <= 3 for each in found)
            assert all(each.speculation.num_accepted > 8 for each in found)
