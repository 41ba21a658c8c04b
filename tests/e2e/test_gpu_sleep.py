"""An engine on a GPU gives its memory back for a while: other processes can have it, and the tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.core.errors import InvalidRequestError

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 400, "max_num_seqs": 8, "deterministic": True}
PROMPTS = [{"prompt_token_ids": [7 + index, *range(20, 20 + 60 * index)]} for index in range(1, 4)]
SIZES = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 12, "vocab_size": 32000}  # 1.5 GiB


def tokens_of(llm: LLM) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    return [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, params, use_tqdm=False)]


def used() -> float:
    """GiB of the GPU, by all."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


@pytest.mark.alone
@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}, {"quantization": "int8"}], ids=str)
def test_memory_goes_back_and_tokens_stay(tiny_model: Callable[[str], Path], options: dict[str, Any]) -> None:
    """With captured graphs, whose addresses stay, and without."""
    room = {"kv_cache_memory_bytes": 4 << 30, "load_format": "dummy", "hf_overrides": SIZES}
    with LLM(str(tiny_model("llama")), enable_sleep_mode=True, **room, **OPTIONS, **options) as llm:
        wanted = tokens_of(llm)
        assert tokens_of(llm) == wanted
        awake = used()
        for level in (1, 2, 1):
            llm.sleep(level)
            assert used() < awake - (4.3 if options.get("quantization") else 5.0), "keys and weights"
            taken = torch.full((4 << 30,), 255, dtype=torch.uint8, device="cuda")  # by another, with anything in it
            del taken
            torch.cuda.empty_cache()
            llm.wake_up(["weights"])
            assert llm.is_sleeping()
            llm.wake_up(["kv_cache"])
            assert used() == pytest.approx(awake, abs=0.5)
            assert tokens_of(llm) == wanted


def test_weights_of_files_are_read_again(tiny_model: Callable[[str], Path]) -> None:
    with LLM(str(tiny_model("llama")), enable_sleep_mode=True, kv_cache_memory_bytes=1 << 28, **OPTIONS) as llm:
        wanted = tokens_of(llm)
        for level in (2, 1, 0):
            llm.sleep(level)
            llm.wake_up()
            assert tokens_of(llm) == wanted


def test_one_that_was_not_set_up_for_it_says_so(tiny_model: Callable[[str], Path]) -> None:
    with LLM(str(tiny_model("llama")), kv_cache_memory_bytes=1 << 28, **OPTIONS) as llm:
        with pytest.raises(InvalidRequestError, match="enable_sleep_mode"):
            llm.sleep()
        assert tokens_of(llm)
