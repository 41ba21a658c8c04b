"""Speculation changes no token and no logprob: with drafts looked up, always wrong, right half of the time or always, a
request gives the bits that it gives alone in an engine without drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.llm_engine import LLMEngine
from cadence.speculate.choose import proposer_of
from tests.helpers.tiny_models import FAMILIES, VOCAB
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.told_proposer import Texts, opening, told_proposer
from tests.helpers.wide import mostly_wide, mostly_wide_rows

pytestmark = pytest.mark.engine

DRAFTS = 4
BASE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 16,
    "num_gpu_blocks_override": 160,
    "num_scheduler_steps": 1,
    "enable_prefix_caching": False,
}
TOLD = {"method": "ngram", "num_speculative_tokens": DRAFTS, "adaptive": False}
LOOKED_UP = {**TOLD, "prompt_lookup_min": 1}
SUFFIX = {**TOLD, "method": "suffix"}
RIGHT = (0.0, 0.5, 1.0)  # probability of a draft
DRAFTING = ("qwen3_moe_mixed", "mamba2", "bamba")  # experts; states. All ways to run an engine are with gemma2

Request = tuple[list[int], SamplingParams]


def work() -> list[Request]:
    """Greedy and seeded; every way to end; lengths on both sides of the families' window of 32 tokens."""
    rng = random.Random(4)
    options: list[tuple[int, dict[str, Any]]] = [
        (5, {"temperature": 0, "max_tokens": 30, "ignore_eos": True}),
        (9, {"temperature": 1.0, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "logprobs": 3}),
        (40, {"temperature": 0, "logprobs": 0, "prompt_logprobs": 1}),
        (17, {"temperature": 0.9, "top_p": 0.95, "top_k": 60, "logit_bias": {5: 2.0}, "stop": ["a", "th", "o"]}),
        (3, {"temperature": 0, "min_tokens": 6, "stop_token_ids": list(range(3, VOCAB, 7)), "max_tokens": 30}),
        (12, {"temperature": 0.8, "n": 2, "logprobs": 1, "presence_penalty": 0.5}),
        (20, {"temperature": 0, "repetition_penalty": 0.4, "logprobs": 2, "max_tokens": 30}),  # repeats itself
        (28, {"temperature": 1.1, "min_p": 0.02, "bad_words": ["e", "the q"], "speculative": {"num_tokens": 2}}),
    ]
    made = []
    for index, (length, changes) in enumerate(options):
        prompt = [rng.randrange(5, VOCAB) for _ in range(length)]
        common = {"seed": 70 + index, "max_tokens": 17, "output_kind": RequestOutputKind.FINAL_ONLY}
        made.append((prompt, SamplingParams(**{**common, **changes})))
    return made


@contextmanager
def opened(directory: Path, texts: Texts | None = None, graphs: str = "", **options: Any) -> Iterator[LLMEngine]:
    """texts: what its proposer is told; none = it looks up, or has no drafts, as speculative_config says."""
    args = EngineArgs.from_options(model=str(directory), **{**BASE, **options})
    new_proposer = proposer_of if texts is None else told_proposer(texts)
    factory = {"new_executor": opening(new_proposer, graphs)}
    with LLMEngine.from_engine_args(args, **factory) as engine:
        yield engine


def run(engine: LLMEngine, requests: Sequence[Request]) -> list[RequestOutput]:
    """All at once -> their last outputs"""
    for index, (prompt, params) in enumerate(requests):
        engine.add_request(str(index), prompt, params)
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        last.update((output.request_id, output) for output in engine.step() if output.finished)
    return [last[str(index)] for index in range(len(requests))]


def alone(engine: LLMEngine, requests: Sequence[Request]) -> list[RequestOutput]:
    return [run(engine, [request])[0] for request in requests]


def said(output: RequestOutput) -> tuple[Any, ...]:
    """All that must be equal, floats to the last bit."""
    completions = [
        (list(each.token_ids), each.text, each.finish_reason, each.stop_reason, each.logprobs, each.cumulative_logprob)
        for each in output.outputs
    ]
    return completions, output.prompt_logprobs


def assert_same(found: list[RequestOutput], expected: list[RequestOutput], how: object) -> None:
    for index, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert said(got) == said(wanted), f"{how}, request {index}"
        for completion in got.outputs:
            assert len(completion.drafted) == completion.speculation.num_accepted, f"{how}, request {index}"


def texts_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """Prompts and what followed."""
    return [[*(output.prompt_token_ids or []), *each.token_ids] for output in outputs for each in output.outputs]


def num_drafted(outputs: Sequence[RequestOutput]) -> int:
    return sum(output.speculation.num_drafted for output in outputs)


def num_accepted(outputs: Sequence[RequestOutput]) -> int:
    return sum(output.speculation.num_accepted for output in outputs)


@pytest.mark.parametrize("family", mostly_wide((*FAMILIES, *STATE_FAMILIES), DRAFTING))
def test_every_family_says_the_same_with_drafts(tiny_model: Callable[[str], Path], family: str) -> None:
    directory, requests, texts = tiny_model(family), work(), Texts(VOCAB)
    with opened(directory) as plain:
        expected = alone(plain, requests)
    assert len({token for text in texts_of(expected) for token in text}) > 60  # they do say something
    with opened(directory, speculative_config=LOOKED_UP) as engine:
        found = run(engine, requests)
        assert_same(found, expected, "looked up")
        assert num_drafted(found) > 0  # right ones, too, where a family repeats itself
    with opened(directory, speculative_config=SUFFIX) as engine:
        found, again = run(engine, requests), run(engine, requests)
        assert_same(found, expected, "suffixes")
        assert_same(again, expected, "suffixes of earlier requests")
        assert num_accepted(again) > max(num_accepted(found) + 30, 60)
    with opened(directory, texts, speculative_config=TOLD) as engine:
        for right in RIGHT:
            texts.tell(texts_of(expected), right)
            found = run(engine, requests)
            assert_same(found, expected, right)
            assert num_drafted(found) > 30 and (num_accepted(found) > 0) == (right > 0), right
        texts.tell(texts_of(expected), 0.5)
        assert_same(alone(engine, requests), expected, "alone")


# What an engine may be beside speculating; a pool of 24 blocks does not hold all requests to their end.
WAYS: dict[str, dict[str, Any]] = {
    "as many drafts as pay": {"speculative_config": {**TOLD, "adaptive": True}},
    "two steps in flight": {"async_scheduling": True},
    "bursts of 4": {"num_scheduler_steps": 4},
    "bursts of 4, two steps in flight": {"num_scheduler_steps": 4, "async_scheduling": True},
    "bursts by themselves": {"num_scheduler_steps": None, "speculative_config": {**TOLD, "adaptive": True}},
    "prompts in chunks": {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 8},
    "often no room for drafts": {"max_num_batched_tokens": 16},
    "prefixes cached": {"enable_prefix_caching": True},
    "tiny pool": {"num_gpu_blocks_override": 24},
    "tiny pool, bursts of 4, two steps in flight": {
        "num_gpu_blocks_override": 24,
        "num_scheduler_steps": 4,
        "async_scheduling": True,
    },
    "int8 keys": {"kv_cache_dtype": "int8"},
    "int4 keys": {"kv_cache_dtype": "int4"},
    "fp8 keys": {"kv_cache_dtype": "fp8"},
    "one draft": {"speculative_config": {**TOLD, "num_speculative_tokens": 1}},
    "nine drafts": {"speculative_config": {**TOLD, "num_speculative_tokens": 9}},
}
MAY_HAVE_NONE = ("as many drafts as pay", "bursts by themselves", "often no room for drafts")
PADDED = ("two steps in flight", "bursts of 4", "prompts in chunks", "tiny pool", "nine drafts")  # as on a GPU
# Each option at least once, some of them together.
SOME = ("bursts by themselves", "prompts in chunks", "int8 keys", "tiny pool, bursts of 4, two steps in flight")
SOME_PADDED = ("tiny pool",)


def ways(plain: Collection[str], padded: Collection[str]) -> list[Any]:
    """(way, graphs) for `parametrize`."""
    always = [*((way, "") for way in SOME), *((way, "padded") for way in SOME_PADDED)]
    return mostly_wide_rows([*((way, "") for way in plain), *((way, "padded") for way in padded)], always)


@pytest.fixture(scope="module")
def plain_answers(tiny_model: Callable[[str], Path]) -> Callable[[str], list[RequestOutput]]:
    """By the type of the keys: each request alone, without drafts. Two groups of layers share one pool."""

    @cache
    def answers(kv_cache_dtype: str) -> list[RequestOutput]:
        with opened(tiny_model("gemma2"), kv_cache_dtype=kv_cache_dtype) as plain:
            return alone(plain, work())

    return answers


@pytest.mark.parametrize(("way", "graphs"), ways(WAYS, PADDED))
def test_every_engine_says_the_same_with_drafts(
    tiny_model: Callable[[str], Path], plain_answers: Callable[[str], list[RequestOutput]], way: str, graphs: str
) -> None:
    expected, texts = plain_answers(WAYS[way].get("kv_cache_dtype", "auto")), Texts(VOCAB)
    with opened(tiny_model("gemma2"), texts, graphs, **{"speculative_config": TOLD, **WAYS[way]}) as engine:
        for right in RIGHT:
            texts.tell(texts_of(expected), right)
            found = run(engine, work())
            assert_same(found, expected, right)
            assert num_drafted(found) > 30 or way in MAY_HAVE_NONE, right
            assert (num_accepted(found) > 0) == (right > 0) or way in MAY_HAVE_NONE, right
    if "tiny pool" in way:
        assert any(output.metrics and output.metrics.num_preemptions for output in found)


def test_a_real_model_quotes_with_drafts() -> None:
    text = "The harbour master keeps a red lantern, a brass bell and a blue flag in the tower."
    prompt, params = f"Copy: {text}\nCopy: {text}\nCopy:", SamplingParams(temperature=0, max_tokens=60, logprobs=1)
    plain = LLM("smollm2", max_model_len=512, num_gpu_blocks_override=200).generate(prompt, params, use_tqdm=False)[0]
    llm = LLM(
        "smollm2",
        max_model_len=512,
        num_gpu_blocks_override=200,
        speculative_config={"method": "ngram", "adaptive": False},
    )
    found = llm.generate(prompt, params, use_tqdm=False)[0]
    assert said(found) == said(plain) and text in found.outputs[0].text
    assert found.speculation.num_accepted > 20
