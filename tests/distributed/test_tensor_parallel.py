"""Ranks that share every layer: together they have it all, and they say what one rank says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence import LLM, SamplingParams
from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS, SEEING
from cadence.core.outputs import Logprob, RequestOutput
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.collectives import OneRank
from cadence.kernels.interface.expert_ops import Routing
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.layers.experts import ExpertLinear, Experts, ExpertsSpec
from cadence.models.layers.rank_share import HeadShare, Held, inner_part, part_of, vocabulary_part
from cadence.models.loader.sliced_weights import Cut
from tests.helpers.tiny_decoders import DECODER_MODELS
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

DENSE = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "opt", "gpt2", "gemma2", "gemma3", "phi3")
EXPERTS = ("qwen3_moe", "qwen3_moe_mixed", "mixtral", "granite_moe")
STATES = ("mamba", "falcon_mamba", "mamba2", "jamba", "bamba", "granite_hybrid", "falcon_h1", "lfm2", "qwen3_next")
MORE = tuple(family for family in DECODER_MODELS if family != "granite_moe")
FAMILIES = (*DENSE, *MORE, *EXPERTS, *STATES, "falcon_h1_norm_last")
OPTIONS = {"dtype": "float32", "max_model_len": 160, "num_gpu_blocks_override": 200}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=2)
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


@given(st.integers(1, 5000), st.integers(1, 8))
def test_every_token_is_at_the_rank_that_is_asked(count: int, size: int) -> None:
    parts = [vocabulary_part(count, rank) for rank in ranks(size)]
    each = len(parts[0])
    assert {len(part) for part in parts} == {each} and each * size < count + 17 * size
    assert all(token in parts[token // each] for token in range(count))
    assert [part.start for part in parts] == [min(rank * each, count - each) for rank in range(size)]


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


def say(model: str, size: int, **options: Any) -> list[RequestOutput]:
    """What so many ranks answer to prompts of one token, of some, and of several blocks; greedy, then seeded."""
    draw = random.Random(3)
    prompts = [[draw.randrange(3, 300) for _ in range(length)] for length in (1, 17, 90)]
    with LLM(model, **OPTIONS, tensor_parallel_size=size, **options) as llm:
        return [found for params in (GREEDY, SEEDED) for found in llm.generate(prompts, params, use_tqdm=False)]


def check_equal(alone: list[RequestOutput], shared: list[RequestOutput], near: float = 1e-4) -> None:
    """near: of logprobs"""
    for one, other in zip(alone, shared, strict=True):
        assert other.outputs[0].token_ids == one.outputs[0].token_ids
        check_near(one.outputs[0].logprobs or [], other.outputs[0].logprobs or [], near)
        check_near((one.prompt_logprobs or [])[1:], (other.prompt_logprobs or [])[1:], near)


def check_near(mine: list[dict[int, Logprob]], theirs: list[dict[int, Logprob]], near: float) -> None:
    """Of tokens that are as likely as each other, one of them may be listed here and the other there."""
    for here, there in zip(mine, theirs, strict=True):
        for these, those in ((here, there), (there, here)):
            for token, each in these.items():
                likely = [those[token]] if token in those else those.values()
                assert min(abs(each.logprob - other.logprob) for other in likely) <= near, (token, here, there)


def test_every_file_of_models_has_a_family_here() -> None:
    others = {*ENCODERS.values(), *ENCODER_DECODERS.values(), *SEEING.values()}
    files = {where.rpartition(".")[2].partition(":")[0] for where in set(ARCHITECTURES.values()) - others}
    assert files - set(FAMILIES) == set()


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, ("llama", "gpt2", "mamba2")))
def test_two_ranks_say_what_one_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = str(tiny_model(family))
    check_equal(say(directory, 1), say(directory, 2))


@pytest.mark.parametrize("family", mostly_wide(EXPERTS, ("qwen3_moe_mixed",)))
def test_ranks_with_whole_experts_say_what_one_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = str(tiny_model(family))
    check_equal(say(directory, 1), say(directory, 2, enable_expert_parallel=True))


@pytest.mark.parametrize("method", mostly_wide(["int8", "int4"], []))
def test_quantised_experts_are_the_same_on_every_rank(method: str, tiny_model: Callable[[str], Path]) -> None:
    """Of the rest, products round what goes into them to 8 bits: what two ranks have between two maps is rounded
    apart, and now and then a token goes to another expert. So prompts are compared: outputs may part."""
    directory = str(tiny_model("mixtral"))
    for options in ({}, {"enable_expert_parallel": True}):
        alone, shared = (prompt_scores(say(directory, size, quantization=method, **options)) for size in (1, 2))
        apart = [abs(here - there) for here, there in zip(alone, shared, strict=True)]
        assert sum(apart) / len(apart) < 0.01


def prompt_scores(outputs: list[RequestOutput]) -> list[float]:
    """The logprobs of all tokens of prompts but the first."""
    return [
        place[token].logprob
        for output in outputs
        if output.prompt_logprobs
        for token, place in zip(output.prompt_token_ids or [], output.prompt_logprobs, strict=True)
        if place
    ]


def test_whole_experts_are_all_there_is_once() -> None:
    spec = ExpertsSpec(10, 16, 8, "silu", Routing(2, renormalise=True, rounded=False))
    meta, found = torch.device("meta"), []
    for rank in ranks(4):
        build = BuildContext(torch.float32, meta, ReferenceOps(), 1, ranks=rank, expert_ranks=rank)
        layer = Experts(build, spec)
        names = {name.split(".")[1] for name, part in layer.named_modules() if isinstance(part, ExpertLinear)}
        assert names == {str(index) for index in layer.own} and not layer.is_all
        found += layer.own
        assert all(part.held.is_all for part in layer.modules() if isinstance(part, ExpertLinear))
        sliced = Experts(replace(build, expert_ranks=OneRank()), spec)
        assert list(sliced.own) == list(range(10)) and not sliced.is_all
    assert found == list(range(10))
    with pytest.raises(ConfigError, match="10 experts are fewer than the 11 ranks"):
        Experts(BuildContext(torch.float32, meta, ReferenceOps(), 1, expert_ranks=ranks(11)[0]), spec)


@pytest.mark.wide
def test_more_ranks_than_heads_of_keys(tiny_model: Callable[[str], Path]) -> None:
    """Two heads of keys, each at two of four ranks."""
    directory = str(tiny_model("llama"))
    check_equal(say(directory, 1), say(directory, 4))


def test_blocks_of_a_gguf_file_are_shared(tmp_path: Path) -> None:
    """Products round what goes into them to 8 bits: what two ranks have between two maps is rounded apart."""
    model = str(make_tiny_gguf(tmp_path / "tiny.gguf", "Q8_0"))
    check_equal(say(model, 1, quantization="gguf"), say(model, 2, quantization="gguf"), near=0.05)


def test_what_ranks_cannot_do_yet_is_said(tiny_model: Callable[[str], Path]) -> None:
    directory = str(tiny_model("llama"))
    for options, field in (({"distributed_executor_backend": "uni"}, "distributed_executor_backend"),):
        with pytest.raises(ConfigError, match=field):
            LLM(directory, **OPTIONS, tensor_parallel_size=2, **options)
