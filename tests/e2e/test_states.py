"""Models with layers that keep a state in place of keys, through the whole engine: what transformers gives; prompts
that go on from a snapshot; how many requests there is room for."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import ConfigError
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.llm_engine import LLMEngine
from cadence.scheduler.features.states import feature
from tests.e2e.test_model_drafts import assert_all_right, drafts_by
from tests.e2e.test_speculation import TOLD, alone, assert_same, opened, said, texts_of, work
from tests.e2e.test_speculation import run as run_all
from tests.e2e.test_transformers_parity import check
from tests.helpers import oracle
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.told_proposer import Texts, opening, told_proposer
from tests.helpers.wide import each_once, mostly_wide

pytestmark = pytest.mark.engine

DIFFERENT = ("mamba2", "bamba")  # states alone, and beside attention
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=3)
SAID = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
BLOCK = 16
BASE: dict[str, Any] = {"dtype": "float32", "max_model_len": 400, "max_num_seqs": 8, "block_size": BLOCK}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


@pytest.mark.parametrize("family", mostly_wide(STATE_FAMILIES, DIFFERENT))
def test_tokens_and_logprobs_are_those_of_transformers(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model(family)
    llm, reference = LLM(str(directory), **BASE, max_num_batched_tokens=50), oracle.load_oracle(directory)
    prompts = [prompt_of(length, length) for length in (1, 17, 90)]
    for prompt, output in zip(prompts, llm.generate(prompts, PARAMS, use_tqdm=False), strict=True):
        check(reference, prompt, output)


def answers(llm: LLM, *prompts: list[int]) -> list[RequestOutput]:
    return llm.generate(list(prompts), SAID, use_tqdm=False)


@pytest.fixture(scope="module")
def plain_of(tiny_model: Callable[[str], Path]) -> Callable[[str, list[int]], RequestOutput]:
    """(family, prompt) -> what an engine without a cache says to it alone"""
    engines: dict[str, LLM] = {}

    def said_by(family: str, prompt: list[int]) -> RequestOutput:
        if family not in engines:
            engines[family] = LLM(str(tiny_model(family)), **BASE, enable_prefix_caching=False)
        return answers(engines[family], prompt)[0]

    return said_by


PlainOf = Callable[[str, list[int]], RequestOutput]


@pytest.mark.parametrize("family", DIFFERENT)
def test_a_prompt_goes_on_from_a_snapshot(family: str, tiny_model: Callable[[str], Path], plain_of: PlainOf) -> None:
    """The same prompt again, the next turn of a chat, a third prompt that begins as two others did: to the last bit
    what an engine says that has kept nothing."""
    llm = LLM(str(tiny_model(family)), **BASE)
    system, first = prompt_of(100, 1), [*prompt_of(100, 1), *prompt_of(70, 2)]
    prompts = [first, first, [*system, *prompt_of(80, 3)], [*system, *prompt_of(30, 4)]]
    cached = []
    for prompt in prompts:
        found, expected = answers(llm, prompt)[0], plain_of(family, prompt)
        assert said(found) == said(expected)
        cached.append(found.num_cached_tokens)
    # The second of those that begin with `system` computes it again, and leaves a snapshot at its end.
    assert cached == [0, 160, 0, 96]
    turn = [*first, *answers(llm, first)[0].outputs[0].token_ids, *prompt_of(9, 5)]
    (found,) = answers(llm, turn)
    assert said(found) == said(plain_of(family, turn)) and found.num_cached_tokens == 160
    assert llm.reset_prefix_cache()
    (found,) = answers(llm, turn)
    assert found.num_cached_tokens == 0 and said(found) == said(plain_of(family, turn))


@pytest.mark.parametrize("family", DIFFERENT)
@pytest.mark.parametrize(
    "options", [{"async_scheduling": True}, {"max_num_batched_tokens": 40}], ids=["depth", "chunks"]
)
def test_few_snapshots_are_used_again_and_again(
    family: str,
    options: dict[str, Any],
    tiny_model: Callable[[str], Path],
    plain_of: PlainOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of six prompts of three beginnings, all at once and twice."""
    monkeypatch.setattr("cadence.executor.worker.state_memory.MOST_SNAPSHOTS", 3)
    prompts = [[*prompt_of(80, seed), *prompt_of(30, 10 + part)] for seed in range(3) for part in range(2)]
    llm = LLM(str(tiny_model(family)), **BASE, **options)
    for _ in range(2):
        for prompt, found in zip(prompts, answers(llm, *prompts), strict=True):
            assert said(found) == said(plain_of(family, prompt))
    found = answers(llm, prompts[-1])[0]
    assert found.num_cached_tokens == 96


@contextmanager
def engine_of(directory: Path, texts: Texts, graphs: str = "", **options: Any) -> Iterator[LLMEngine]:
    args = EngineArgs.from_options(model=str(directory), **{**BASE, **options})
    with LLMEngine.from_engine_args(args, new_executor=opening(told_proposer(texts), graphs)) as engine:
        yield engine


def run(engine: LLMEngine, prompts: list[list[int]], preempted_after: Collection[int] = ()) -> list[RequestOutput]:
    """preempted_after: steps after which everyone loses its row"""
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, replace(SAID, max_tokens=20))
    last: dict[str, RequestOutput] = {}
    for number in count():
        if not engine.has_unfinished_requests():
            break
        last.update((output.request_id, output) for output in engine.step() if output.finished)
        if number in preempted_after:
            engine.reset_prefix_cache(reset_running_requests=True)
    return [last[str(index)] for index in range(len(prompts))]


@pytest.mark.parametrize("family", DIFFERENT)
@pytest.mark.parametrize(
    "options",
    [
        {"graphs": "padded", "num_scheduler_steps": 4, "async_scheduling": True},
        {"num_scheduler_steps": 4, "max_num_batched_tokens": 24},
    ],
    ids=["padded", "bursts"],
)
def test_drafts_preemption_and_snapshots_change_no_bit(
    family: str, options: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    """Half of the drafts are right; everyone is preempted, three times; then prompts go on from snapshots."""
    directory, texts = tiny_model(family), Texts(VOCAB)
    prompts = [prompt_of(length, length) for length in (5, 33, 100, 75)]
    with engine_of(directory, texts, enable_prefix_caching=False) as plain:
        expected = [run(plain, [prompt])[0] for prompt in prompts]
    with engine_of(directory, texts, **options, speculative_config=TOLD) as engine:
        texts.tell(texts_of(expected), 0.5)
        found = run(engine, prompts, preempted_after=(2, 6, 15))
        assert any(output.metrics and output.metrics.num_preemptions > 1 for output in found)
        for again in (found, run(engine, prompts), run(engine, prompts)):
            assert_same(again, expected, options)
            assert sum(output.speculation.num_accepted for output in again) > 5
    assert again[2].num_cached_tokens == 96


DRAFTING_WAYS = {
    "padded": {"graphs": "padded", "num_scheduler_steps": 4, "async_scheduling": True},
    "chunks, prefixes cached": {"max_num_batched_tokens": 64, "enable_prefix_caching": True},
    "as many as pay": {"num_scheduler_steps": None, "keys": {"adaptive": True}},
    "tiny pool": {"num_gpu_blocks_override": 16, "async_scheduling": True},
}


@pytest.mark.parametrize(("family", "way"), each_once(DIFFERENT, tuple(DRAFTING_WAYS), turns=2))
def test_a_model_with_states_drafts_for_itself(family: str, way: str, tiny_model: Callable[[str], Path]) -> None:
    """It tries drafts on a second state of a row: every greedy one is right, whatever happened to the row before."""
    directory, options = tiny_model(family), dict(DRAFTING_WAYS[way])
    keys, graphs = options.pop("keys", {}), options.pop("graphs", "")
    with opened(directory) as plain:
        expected = alone(plain, work())
    with opened(directory, None, graphs, speculative_config=drafts_by(directory, **keys), **options) as engine:
        for _ in range(2):
            found = run_all(engine, work())
            assert_same(found, expected, way)
            if not keys:
                assert_all_right(found[0])
    if way == "tiny pool" and family == "bamba":
        assert any(output.metrics and output.metrics.num_preemptions for output in found)


def test_one_without_states_has_no_drafts_by_one_that_has_such(tiny_model: Callable[[str], Path]) -> None:
    asked = drafts_by(tiny_model("mamba2"))
    with pytest.raises(ConfigError, match="drafts for one that has such, too"):
        LLM(str(tiny_model("llama")), **BASE, speculative_config=asked)


def test_without_attention_a_context_has_no_end(tiny_model: Callable[[str], Path]) -> None:
    """But the user's; the usual one is short of what some tables would take."""
    directory = str(tiny_model("mamba2"))
    assert LLM(directory, max_num_seqs=2).llm_engine.config.model.max_model_len == 32768
    long = LLM(directory, max_num_seqs=2, max_model_len=200_000, kv_cache_memory_bytes=2**20)
    assert len(long.generate([7] * 3000, SAID, use_tqdm=False)[0].outputs[0].token_ids) == SAID.max_tokens


def test_as_many_requests_run_at_once_as_states_fit(
    tiny_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    directory = str(tiny_model("mamba2"))
    with caplog.at_level(logging.WARNING, "cadence.config"):
        llm = LLM(directory, **{**BASE, "max_num_seqs": 64}, kv_cache_memory_bytes=2**20)
    assert "max_num_seqs is" in caplog.text
    rows = llm.llm_engine.config.scheduler.max_num_seqs
    assert 1 < rows < 64
    prompts = [prompt_of(20 + number, number) for number in range(2 * rows)]
    assert all(len(output.outputs[0].token_ids) == SAID.max_tokens for output in answers(llm, *prompts))
    with pytest.raises(ConfigError, match=r"the state of one request takes .*: raise kv_cache_memory_bytes$"):
        LLM(directory, **BASE, kv_cache_memory_bytes=2**14)


@pytest.mark.parametrize("config", [None, {**TOLD, "num_speculative_tokens": 2}], ids=["no drafts", "two drafts"])
def test_a_grammar_forces_no_more_than_states_keep(
    config: dict[str, Any] | None, tiny_model: Callable[[str], Path]
) -> None:
    """Tokens that must come are drafts, and a state keeps as many of these as the engine may propose. What is said has
    the logprobs that it has as a prompt."""
    llm = LLM(str(tiny_model("bamba")), **BASE, speculative_config=config)
    prompt, rule = prompt_of(20), StructuredOutputsParams(regex="(quick brown fox jumps over ){1,3}")
    params = SamplingParams(temperature=0, max_tokens=70, logprobs=0, structured_outputs=rule)
    (found,) = llm.generate([prompt], params, use_tqdm=False)
    (said,) = found.outputs
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (again,) = llm.generate([[*prompt, *said.token_ids]], asked, use_tqdm=False)
    assert said.text.startswith("quick brown fox jumps over") and said.logprobs and again.prompt_logprobs
    after = zip(said.token_ids, said.logprobs, again.prompt_logprobs[len(prompt) :], strict=True)
    assert all(mine[token].logprob == pytest.approx(its[token].logprob, abs=1e-5) for token, mine, its in after if its)


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "not cached"])
def test_states_in_use_are_counted(caching: bool, tiny_model: Callable[[str], Path]) -> None:
    llm = LLM(str(tiny_model("bamba")), **BASE, enable_prefix_caching=caching)
    prompt = prompt_of(100)
    for number in range(2):
        llm.llm_engine.add_request(str(number), prompt[: 100 - number], SAID)
    llm.llm_engine.step()
    assert counted(llm)["rows_used"] == 2
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    answers(llm, prompt)
    found = counted(llm)
    assert (found["rows"], found["rows_used"]) == (BASE["max_num_seqs"], 0)
    if caching:  # at the end of the last whole block, once of both prompts
        assert found["snapshots"] > 10
        assert {name: found[f"snapshots_{name}"] for name in ("used", "saved", "restored", "evicted")} == {
            "used": 1, "saved": 1, "restored": 1, "evicted": 0,
        }  # fmt: skip
    else:
        assert not any(value for name, value in found.items() if "snapshots" in name)


def counted(llm: LLM) -> dict[str, float]:
    begin = "cadence:state_"
    return {each.name.removeprefix(begin): each.value for each in llm.get_metrics() if each.name.startswith(begin)}


def test_a_model_without_states_counts_none(tiny_model: Callable[[str], Path]) -> None:
    assert not counted(LLM(str(tiny_model("llama")), **BASE))


def test_short_prompts_are_not_cut() -> None:
    assert feature.LEAST_GAIN > BLOCK
