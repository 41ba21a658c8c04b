"""Drafts that a model makes change no token and no logprob, in every engine; and with the target itself as the proposer
every greedy draft is right, whatever happened to its keys on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.errors import ConfigError, ModelNotFoundError
from cadence.runner.features.drafts.model_drafts import ModelDrafts
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import StepShape
from cadence.scheduler.features.drafts.policy import DraftPolicy
from tests.e2e.test_speculation import (
    DRAFTING,
    DRAFTS,
    WAYS,
    alone,
    assert_same,
    num_accepted,
    num_drafted,
    opened,
    plain_answers,  # noqa: F401 - a fixture
    run,
    said,
    ways,
    work,
)
from tests.helpers.head_layouts import LAYOUTS
from tests.helpers.tiny_models import FAMILIES
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.wide import mostly_wide, mostly_wide_rows

pytestmark = pytest.mark.engine


def drafts_by(directory: Path, method: str = "draft_model", **keys: Any) -> dict[str, Any]:
    common = {"method": method, "num_speculative_tokens": DRAFTS, "adaptive": False}
    return {**common, **({} if method == "mtp" else {"model": str(directory)}), **keys}


def assert_all_right(greedy: RequestOutput) -> None:
    """But those after its last token."""
    stats = greedy.speculation
    assert stats.num_drafted - stats.num_accepted < DRAFTS and stats.num_accepted > DRAFTS


@pytest.mark.parametrize("family", mostly_wide((*FAMILIES, *STATE_FAMILIES), DRAFTING))
def test_a_family_drafts_for_itself(tiny_model: Callable[[str], Path], family: str) -> None:
    directory, requests = tiny_model(family), work()
    with opened(directory) as plain:
        expected = alone(plain, requests)
    with opened(directory, speculative_config=drafts_by(directory)) as engine:
        found = run(engine, requests)
    assert_same(found, expected, family)
    assert_all_right(found[0])


# As on the page before; `adaptive` pauses drafts, and the model must catch up.
MODEL_WAYS = {way: options for way, options in WAYS.items() if way != "nine drafts"}
PADDED = ("two steps in flight", "bursts of 4", "prompts in chunks", "tiny pool, bursts of 4, two steps in flight")


@pytest.mark.parametrize(("way", "graphs"), ways(MODEL_WAYS, PADDED))
def test_every_engine_says_the_same_with_drafts_by_a_model(
    tiny_model: Callable[[str], Path],
    plain_answers: Callable[[str], list[RequestOutput]],  # noqa: F811
    way: str,
    graphs: str,
) -> None:
    directory, options = tiny_model("gemma2"), dict(MODEL_WAYS[way])
    asked = options.pop("speculative_config", {})
    keys = {key: asked[key] for key in ("adaptive", "num_speculative_tokens") if key in asked}
    expected = plain_answers(options.get("kv_cache_dtype", "auto"))
    with opened(directory, None, graphs, speculative_config=drafts_by(directory, **keys), **options) as engine:
        for _ in range(2):
            found = run(engine, work())
            assert_same(found, expected, way)
    if "tiny pool" in way:
        assert any(output.metrics and output.metrics.num_preemptions for output in found)
    if way not in ("int8 keys", "int4 keys", "fp8 keys", "often no room for drafts", "one draft", *ADAPTIVE):
        assert_all_right(found[0])


ADAPTIVE = ("as many drafts as pay", "bursts by themselves")


# One of each way to draft; tests/models/test_heads.py holds every layout to plain torch.
SOME_HEADS = ("eagle of speculators", "eagle3", "mtp as in DeepSeek", "medusa of few tokens")


@pytest.mark.parametrize("layout", mostly_wide(LAYOUTS, SOME_HEADS))
def test_heads_change_nothing(layout: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    method, directory, _ = LAYOUTS[layout](tiny_model("llama"), tmp_path / "head")
    target, requests = (directory if method == "mtp" else tiny_model("llama")), work()
    with opened(target) as plain:
        expected = alone(plain, requests)
    options = {"num_scheduler_steps": 4, "async_scheduling": True, "enable_prefix_caching": True}
    with opened(target, speculative_config=drafts_by(directory, method), **options) as engine:
        for _ in range(2):
            found = run(engine, requests)
            assert_same(found, expected, layout)
            assert num_drafted(found) > 30


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes engines draft for three plans, then not for so many as it says, and so on; and holds the head, before each
    forward, to what the host counts -> plans of a pause; and, appended, positions that a row had waiting then"""
    seen, named = [5], ModelDrafts.name
    plans = count()

    def choose(policy: DraftPolicy, rows_np: np.ndarray) -> tuple[list[tuple[int, int]], int]:
        most = policy.most if next(plans) % (3 + seen[0]) < 3 else 0
        sent_np = policy._sent_np[rows_np]
        return policy._send(rows_np, sent_np, np.full_like(sent_np, most)) if len(rows_np) else ([], 1)

    def checked(drafts: ModelDrafts, layout: BatchLayout, shape: StepShape) -> int:
        room = named(drafts, layout, shape)
        rows, drafted = drafts._parts.rows, drafts._parts.drafted
        num_waiting = drafts._num_waiting(layout, shape.depth)
        for index, row in enumerate(layout.rows_np.tolist()):
            if not rows.quiet[row]:
                lacks = int(rows.num_computed[row] - drafted.computed[row])
                counted = drafts._parts.waiting._count_np[row] - shape.num_forwards
                assert lacks == (counted if index < num_waiting else 0)
                seen.append(lacks)
        return room

    monkeypatch.setattr(DraftPolicy, "choose", choose)
    monkeypatch.setattr(ModelDrafts, "name", checked)
    return seen


RESTS = ("bursts of 4", "prompts in chunks", "tiny pool, bursts of 4, two steps in flight")


@pytest.mark.parametrize(
    ("way", "graphs"),
    mostly_wide_rows(
        [(way, graphs) for way in RESTS for graphs in ("", "padded")],
        [("tiny pool, bursts of 4, two steps in flight", "padded")],
    ),
)
def test_heads_rest_and_go_on(
    way: str, graphs: str, tiny_model: Callable[[str], Path], tmp_path: Path, pauses: list[int]
) -> None:
    method, directory, _ = LAYOUTS["eagle3"](tiny_model("llama"), tmp_path / "head")
    options, requests = MODEL_WAYS[way], [*work(), ([8] * 9, SamplingParams(temperature=0, max_tokens=100))]
    with opened(tiny_model("llama")) as plain:
        expected = alone(plain, requests)
    config = drafts_by(directory, method)
    with opened(tiny_model("llama"), None, graphs, speculative_config=config, **options) as engine:
        drafted = 0
        for pauses[0] in (2, 11, 60):
            found = run(engine, requests)
            assert_same(found, expected, way)
            drafted += num_drafted(found)
    assert drafted > 30
    assert max(pauses[1:]) > 20, "many positions waited"


def test_a_draft_of_another_family_and_length(tiny_model: Callable[[str], Path]) -> None:
    """Sequences that are too long for it go on without drafts."""
    target, draft = tiny_model("llama"), tiny_model("qwen3")
    prompt, params = [7, 9, 11] * 8, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with opened(target) as plain:
        expected = run(plain, [(prompt, params)])
    with opened(target, speculative_config=drafts_by(draft, max_model_len=50)) as engine:
        found = run(engine, [(prompt, params)])
    assert said(found[0]) == said(expected[0])
    longest = 50 - len(prompt)
    assert 0 < found[0].speculation.num_drafted <= DRAFTS * longest
    with opened(target, speculative_config=drafts_by(draft)) as engine:
        assert num_drafted(run(engine, [(prompt, params)])) > found[0].speculation.num_drafted


def test_a_pause_leaves_no_hole(tiny_model: Callable[[str], Path]) -> None:
    """While one request without drafts fills the step, the other has none; its model catches up afterwards."""
    directory = tiny_model("gemma2")
    greedy = {"temperature": 0, "ignore_eos": True}
    requests = [
        ([5, 6, 7, 8, 9], SamplingParams(**greedy, max_tokens=70)),
        ([9] * 60, SamplingParams(**greedy, max_tokens=20, speculative={"num_tokens": 0})),
    ]
    with opened(directory) as plain:
        expected = alone(plain, requests)
    config = drafts_by(directory)
    options = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "num_scheduler_steps": 2}
    with opened(directory, speculative_config=config, **options) as engine:
        found = run(engine, requests)
    assert_same(found, expected, "pause")
    assert_all_right(found[0])


def test_the_head_that_comes_with_the_package() -> None:
    prompt = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=1)
    plain = LLM("smollm2", max_model_len=512, num_gpu_blocks_override=200).chat(prompt, params, use_tqdm=False)[0]
    llm = LLM(
        "smollm2",
        max_model_len=512,
        num_gpu_blocks_override=200,
        speculative_config={"method": "eagle3", "adaptive": False},
    )
    found = llm.chat(prompt, params, use_tqdm=False)[0]
    assert said(found) == said(plain)
    assert num_accepted([found]) > 20


def test_what_does_not_fit_is_said_at_the_start(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    llama = tiny_model("llama")
    head = LAYOUTS["eagle3"](llama, tmp_path / "head")[1]
    for config, words in (
        ({"method": "draft_model"}, "speculative_config.model is missing"),
        ({"method": "draft_model", "model": "/nowhere"}, "speculative_config.model"),
        ({"method": "eagle3", "model": str(head), "num_speculative_tokens": 0}, "num_speculative_tokens=0"),
        ({"method": "mtp"}, "no module for multi-token prediction"),
        ({"method": "eaggle"}, "did you mean eagle"),
        ({"method": "ngram", "num_speculative_tokens": 31}, "max_model_len"),
    ):
        options = {"model": str(llama), "max_model_len": 24, "dtype": "float32", "speculative_config": config}
        with pytest.raises((ConfigError, ModelNotFoundError), match=words):
            LLM(**options)
    config = json.loads((head / "config.json").read_text())
    for change in ({"hidden_size": 48}, {"vocab_size": 77}):
        (head / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ConfigError, match="made for another model"):
            LLM(str(llama), dtype="float32", speculative_config=drafts_by(head, "eagle3"))
