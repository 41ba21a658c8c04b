"""Suffix decoding in engines: drafts from requests that ended change no token, and most are right where a request comes
again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.sampling_params import RequestOutputKind
from cadence.device.calls import Calls, CommandGraph
from cadence.device.probe import open_device
from cadence.engine.llm_engine import LLMEngine
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.executor.factory import OpenExecutor, Processors, Resolve, device_caps, open_on
from tests.e2e.test_speculation import (
    BASE,
    DRAFTS,
    PADDED,
    SOME,
    SOME_PADDED,
    SUFFIX,
    WAYS,
    Request,
    alone,
    assert_same,
    num_accepted,
    num_drafted,
    opened,
    run,
    work,
)
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

PROMPTS = ([41, 7, 290, 113, 58], [41, 7, 290, 113, 59], [9, 8, 7, 6, 5, 4])
LONG = 40  # tokens of an answer


def asked(*prompts: Sequence[int], **params: Any) -> list[Request]:
    common = {"temperature": 0, "max_tokens": LONG, "ignore_eos": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    return [(list(prompt), SamplingParams(**{**common, **params})) for prompt in prompts]


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("gemma2")


@pytest.fixture(scope="module")
def plain(directory: Path) -> Any:
    with opened(directory) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plain: LLMEngine) -> list[RequestOutput]:
    return alone(plain, work())


@pytest.mark.parametrize("way", mostly_wide([way for way in WAYS if not way.endswith(" keys")], SOME))
def test_every_engine_says_the_same(directory: Path, expected: list[RequestOutput], way: str) -> None:
    options = {"speculative_config": SUFFIX, **WAYS[way]}
    options["speculative_config"] = {**options["speculative_config"], "method": "suffix"}
    with opened(directory, **options) as engine:
        for turn in range(2):
            found = run(engine, work())
            assert_same(found, expected, (way, turn))
        assert_same(alone(engine, work()), expected, (way, "alone"))
    if "tiny pool" in way:
        assert any(output.metrics and output.metrics.num_preemptions for output in found)


def open_padded(kind: str, resolve: Resolve, logits_processors: Processors) -> OpenExecutor:
    """With the shapes of a GPU."""
    config = resolve(device_caps(kind))
    config = replace(config, device=replace(config.device, graphs="padded"))
    return open_on(open_device(config.device.kind, config.device.cpu_threads), config, logits_processors)


@pytest.mark.parametrize("way", mostly_wide(PADDED, SOME_PADDED))
def test_padded_shapes_say_the_same(directory: Path, expected: list[RequestOutput], way: str) -> None:
    options = {**BASE, "speculative_config": SUFFIX, **WAYS[way]}
    options["speculative_config"] = {**options["speculative_config"], "method": "suffix"}
    args = EngineArgs.from_options(model=str(directory), **options)
    with LLMEngine.from_engine_args(args, new_executor=open_padded) as engine:
        for turn in range(2):
            found = run(engine, work())
            assert_same(found, expected, (way, turn))
        assert num_accepted(found) > 60


@pytest.mark.parametrize("deep", [{}, {"num_scheduler_steps": 4, "async_scheduling": True}], ids=["shallow", "deep"])
def test_a_request_that_comes_again_is_drafted_from_the_first(
    directory: Path, plain: LLMEngine, deep: dict[str, Any]
) -> None:
    requests = asked(*PROMPTS, logprobs=1)
    wanted = alone(plain, requests)
    with opened(directory, speculative_config=SUFFIX, **deep) as engine:
        first, second = run(engine, requests), run(engine, requests)
        assert_same(first, wanted, "first")
        assert_same(second, wanted, "second")
        for output in second:
            drafts = output.speculation
            assert drafts.num_accepted > 0.8 * drafts.num_drafted and drafts.num_accepted > LONG // 2, drafts
        assert num_accepted(second) > 2 * num_accepted(first)


def test_how_many_requests_are_remembered(directory: Path) -> None:
    """The first of two: not where none is, not where one is, but where two are."""
    one, other = asked(PROMPTS[0], PROMPTS[2])
    kept = {}
    for most in (0, 1, 2):
        keys = {**SUFFIX, "suffix_decoding_max_cached_requests": most}
        with opened(directory, speculative_config=keys) as engine:
            alone(engine, [one, other])
            kept[most] = num_accepted(alone(engine, [one])), num_accepted(alone(engine, [one]))
    with opened(directory, speculative_config=SUFFIX) as engine:
        base = num_accepted(alone(engine, [one]))
    assert kept[0] == (base, base), "a request finds itself alone"
    assert kept[1][0] < kept[1][1] and kept[2][0] > base + LONG // 3


def test_what_is_drafted_is_limited(directory: Path, plain: LLMEngine) -> None:
    requests = asked(*PROMPTS) + asked(PROMPTS[0], speculative={"num_tokens": 0})
    wanted = alone(plain, requests)
    for keys in (
        {"suffix_decoding_max_tree_depth": 1},
        {"suffix_decoding_max_spec_factor": 0},
        {"suffix_decoding_max_spec_factor": 31.5, "num_speculative_tokens": 31},
        {"suffix_decoding_min_token_prob": 1.0},
    ):
        with opened(directory, speculative_config={**SUFFIX, **keys}) as engine:
            for _ in range(2):
                found = run(engine, requests)
                assert_same(found, wanted, keys)
                assert num_drafted(found[3:]) == 0, "it asked for none"
            furthest = max(len(output.speculation.drafted_by_position) for output in found)
        single = "suffix_decoding_max_tree_depth" in keys or keys.get("suffix_decoding_max_spec_factor") == 0
        assert furthest == 1 if single else furthest >= DRAFTS, keys


def test_requests_without_end_stay_within_the_models_length(directory: Path) -> None:
    limits = {"max_model_len": 48, "num_gpu_blocks_override": 40}
    requests = [request for size in (47, 46, 43, 30) for request in asked((PROMPTS[0] * 10)[:size], max_tokens=None)]
    with opened(directory, **limits) as plain, opened(directory, **limits, speculative_config=SUFFIX) as engine:
        wanted = alone(plain, requests)
        for _ in range(2):
            assert_same(run(engine, requests), wanted, "at the limit")


def test_aborted_requests_leave_what_they_said(directory: Path, plain: LLMEngine) -> None:
    request = asked(PROMPTS[0])[0]
    wanted = alone(plain, [request])
    with opened(directory, speculative_config=SUFFIX, async_scheduling=True) as engine:
        base = num_accepted(alone(engine, asked(PROMPTS[2])))
        engine.add_request("aborted", *request)
        for _ in range(LONG // 2):
            engine.step()
        engine.abort_request("aborted")
        found = alone(engine, [request])
        assert_same(found, wanted, "after an abort")
        assert num_accepted(found) > base


def test_decode_steps_are_recorded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    record = Calls.record

    def noted(calls: Calls, work: Callable) -> tuple:
        graph, output = record(calls, work)
        made.append(type(graph))
        return graph, output

    monkeypatch.setattr(Calls, "record", noted)
    with opened(directory, speculative_config=SUFFIX, num_scheduler_steps=4) as engine:
        for _ in range(2):
            run(engine, asked(*PROMPTS))
    assert made and set(made) == {CommandGraph}


def test_a_new_engine_goes_on_where_one_died(directory: Path) -> None:
    """It remembers nothing, and streams end with the tokens they would have had."""
    options = {**BASE, "max_model_len": 512, "num_gpu_blocks_override": 400, "speculative_config": SUFFIX}

    async def tokens(llm: AsyncLLM, number: int) -> list[int]:
        params = SamplingParams(temperature=0.7, seed=number, max_tokens=300, ignore_eos=True)
        async for output in llm.generate(PROMPTS[number % 3], params, f"{number}-{llm.num_restarts}-{id(params)}"):
            last = list(output.outputs[0].token_ids)
        return last

    async def check() -> None:
        llm = await AsyncLLM.start(EngineArgs.from_options(model=str(directory), **options))
        undisturbed = await asyncio.gather(*(tokens(llm, number) for number in range(6)))
        streams = asyncio.gather(*(tokens(llm, number) for number in range(6)))
        while not (await llm.engine_state()).running:
            await asyncio.sleep(0.005)
        os.kill(llm.engine_pid, signal.SIGKILL)
        assert await streams == undisturbed and llm.num_restarts == 1
        assert await asyncio.gather(*(tokens(llm, number) for number in range(6))) == undisturbed
        await llm.shutdown(drain=False)

    asyncio.run(check())


@pytest.mark.wide
def test_a_real_model_answers_again() -> None:
    prompt, params = "Three sights of Paris:", SamplingParams(temperature=0, max_tokens=60, logprobs=1)
    plain = LLM("smollm2", max_model_len=512, num_gpu_blocks_override=200).generate(prompt, params, use_tqdm=False)[0]
    llm = LLM(
        "smollm2",
        max_model_len=512,
        num_gpu_blocks_override=200,
        speculative_config={"method": "suffix", "adaptive": False},
    )
    first, second = (llm.generate(prompt, params, use_tqdm=False)[0] for _ in range(2))
    assert_same([first, second], [plain, plain], "again")
    assert second.speculation.num_accepted > 50 and second.speculation.num_forwards < 10
