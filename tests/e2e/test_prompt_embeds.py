"""Vectors in the place of a prompt's tokens: what the tokens would give, in every way to run an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from cadence import LLM, SamplingParams
from cadence.core.errors import ConfigError, InvalidRequestError
from tests.e2e.test_media import BASE, DRAFTS, GREEDY, answers
from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine]

IDS = [[5, 6, 7, 8, 9], list(range(20, 60)), list(range(20, 50))]
WAYS: dict[str, dict[str, Any]] = {
    "chunks, bursts": {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 7, "num_scheduler_steps": 4},
    "two stages": {"pipeline_parallel_size": 2},
    "drafts looked up": {"speculative_config": DRAFTS},
    "tiny pool": {"num_gpu_blocks_override": 12, "max_model_len": 128},
}


def vectors(directory: Path, ids: Sequence[Sequence[int]], kind: Any = AutoModelForCausalLM) -> list[dict[str, Any]]:
    """Prompts of what transformers' embedding gives: scaled, where a family scales it."""
    embed = kind.from_pretrained(directory, dtype=torch.float32).get_input_embeddings()
    return [{"prompt_embeds": embed(torch.tensor(each)).detach()} for each in ids]


def tokens(ids: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": list(each)} for each in ids]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("family", ["gemma2", "qwen_vl"])
def test_every_kind_of_embedding(tmp_path: Path, family: str) -> None:
    """One that is scaled, and one of a model whose positions have axes."""
    if family == "gemma2":
        directory, kind = make_tiny("gemma2", tmp_path), AutoModelForCausalLM
    else:
        directory, kind = make_qwen_vl("2.5", tmp_path), AutoModelForImageTextToText
    llm = LLM(model=str(directory), **BASE, enable_prompt_embeds=True)
    plain = answers(llm.generate(tokens(IDS), GREEDY, use_tqdm=False))
    assert answers(llm.generate(vectors(directory, IDS, kind), GREEDY, use_tqdm=False)) == plain


@pytest.mark.parametrize("way", mostly_wide(WAYS, ("chunks, bursts", "tiny pool")))
def test_vectors_are_what_tokens_would_be(directory: Path, way: str) -> None:
    """In one batch with them; the second time from caches, in which neither finds the other."""
    llm = LLM(model=str(directory), **BASE | WAYS[way], enable_prompt_embeds=True)
    plain = answers(LLM(model=str(directory), **BASE).generate(tokens(IDS), GREEDY, use_tqdm=False))
    for _ in range(2):
        outputs = llm.generate([*tokens(IDS), *vectors(directory, IDS)], GREEDY, use_tqdm=False)
        assert answers(outputs) == plain * 2
    if way != "tiny pool":
        assert outputs[1].num_cached_tokens and outputs[4].num_cached_tokens


def test_what_is_wrong_is_said(directory: Path, tmp_path: Path) -> None:
    llm = LLM(model=str(directory), **BASE, enable_prompt_embeds=True)
    refused = [
        ({"prompt_embeds": torch.zeros(3, 7)}, "vectors of 7 entries; the model's have 64"),
        ({"prompt_embeds": torch.zeros(64)}, r"must be \[tokens, hidden size\]"),
        ({"prompt_embeds": torch.zeros(0, 64)}, r"must be \[tokens, hidden size\]"),
        ({"prompt_embeds": torch.full((2, 64), torch.nan)}, "not finite"),
        ({"prompt_embeds": "words"}, "must be numbers"),
        ({"prompt_embeds": torch.zeros(9999, 64)}, "9999 vectors; this engine takes at most"),
    ]
    for given, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            llm.generate(given, GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="prompt_logprobs cannot be used with prompt_embeds"):
        llm.generate({"prompt_embeds": torch.zeros(3, 64)}, SamplingParams(prompt_logprobs=1), use_tqdm=False)
    with pytest.raises(ConfigError, match="has an encoder"):
        LLM(model=str(make_seq2seq("bart", tmp_path)), **BASE, enable_prompt_embeds=True)
