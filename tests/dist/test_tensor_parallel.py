"""Ranks that share every layer: together they have it all, and they say what one rank says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence import LLM, SamplingParams
from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.collectives import OneRank
from cadence.models.layers.rank_share import HeadShare, Held, inner_part, part_of
from cadence.models.loader.sliced_weights import Cut

pytestmark = pytest.mark.engine

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "opt", "gpt2", "gemma2", "gemma3", "phi3")
OPTIONS = {"dtype": "float32", "max_model_len": 160, "num_gpu_blocks_override": 200}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3)
SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=24, ignore_eos=True, repetition_penalty=1.2)


@dataclass
class Rank(OneRank):
    rank: int = 0
    size: int = 1


def ranks(size: int) -> list[Rank]:
    return [Rank(rank, size) for rank in range(size)]


@given(st.integers(0, 5000), st.integers(1, 8))
def test_parts_are_all_there_is_once(count: int, size: int) -> None:
    for divide in (part_of, inner_part) if count >= size else (part_of,):
        parts = [divide(count, rank) for rank in ranks(size)]
        assert [place for part in parts for place in part] == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 256


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_heads_stay_with_their_keys(kv_heads: int, group: int, size: int) -> None:
    shape = AttentionShape(kv_heads * group, kv_heads, 16, 0.25)
    try:
        shares = [HeadShare.of(shape, rank) for rank in ranks(size)]
    except ConfigError as error:
        assert kv_heads < size and (size % kv_heads or shape.num_heads % size) and "tensor_parallel_size" in str(error)
        return
    assert [head for share in shares for head in share.queries[1]] == list(range(shape.num_heads))
    for share in shares:
        own, keys = share.shape, share.keys[1]
        each = own.num_heads // own.num_kv_heads
        assert own.num_heads == each * own.num_kv_heads
        for place, head in enumerate(share.queries[1]):
            assert keys[place // each] == head // group


def test_a_fused_matrix_is_cut_in_each_part() -> None:
    held = Held({"q": (4, range(2, 4)), "k": (2, range(1, 2)), "v": (2, range(1, 2))}, (3, range(3)))
    assert held.stored_rows("k") == (2, (range(1, 2),))
    count, rows = held.stored_rows("")
    whole = torch.arange(24).view(8, 3)
    assert Cut((count, 3), (rows, (range(3),))).of(whole)[:, 0].tolist() == [6, 9, 15, 21]
    assert Cut((3, count), ((range(3),), rows)).of(whole.T).shape == (3, 4)
    assert not held.is_all and not held.sums and Held({"": (2, range(2))}, (4, range(2))).sums


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_say_what_one_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory, draw = str(tiny_model(family)), random.Random(3)
    prompts = [[draw.randrange(3, 300) for _ in range(length)] for length in (1, 17, 90)]
    found = []
    for options in ({}, {"tensor_parallel_size": 2}):
        llm = LLM(directory, **OPTIONS, **options)
        found.append([llm.generate(prompts, params, use_tqdm=False) for params in (GREEDY, SEEDED)])
        del llm
    for alone, shared in zip(*found, strict=True):
        for one, other in zip(alone, shared, strict=True):
            assert other.outputs[0].token_ids == one.outputs[0].token_ids
            if one.outputs[0].logprobs is not None:
                pairs = zip(one.outputs[0].logprobs, other.outputs[0].logprobs, strict=True)
                for mine, theirs in pairs:
                    assert {token: each.logprob for token, each in theirs.items()} == pytest.approx(
                        {token: each.logprob for token, each in mine.items()}, abs=1e-4
                    )


def test_what_ranks_cannot_do_yet_is_said(tiny_model: Callable[[str], Path]) -> None:
    directory = str(tiny_model("llama"))
    for options, field in (
        ({"enable_lora": True}, "enable_lora"),
        ({"distributed_executor_backend": "uni"}, "distributed_executor_backend"),
        ({"speculative_config": {"method": "draft_model", "model": directory, "num_speculative_tokens": 2}}, "spec"),
    ):
        with pytest.raises(ConfigError, match=field):
            LLM(directory, **OPTIONS, tensor_parallel_size=2, **options)
