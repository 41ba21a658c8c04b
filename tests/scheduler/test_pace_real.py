"""A long prompt beside a running stream, on the real model; what steps take is simulated."""

from __future__ import annotations

import random

import pytest

from cadence import SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.contract.step import StepPlan
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.llm_engine import LLMEngine
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.timed_world import Costs

pytestmark = pytest.mark.engine

PROMPT = 700
OPTIONS = {"max_model_len": 1024, "max_num_seqs": 4, "enable_prefix_caching": False, "use_tqdm_on_load": False}
SECONDS = Costs(step=0.005, token=0.001)
TARGET = 0.25


@pytest.fixture
def prompt_steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of every step with a prompt: the seconds that the scheduler is told it took."""
    steps: list[float] = []
    observe_time = Scheduler.observe_time

    def told(self: Scheduler, plan: StepPlan, seconds: float, num_drafts: int = 0) -> None:
        if plan.num_tokens_np.max(initial=0) > 1:
            steps.append(SECONDS(plan))
        observe_time(self, plan, SECONDS(plan), num_drafts)

    monkeypatch.setattr(Scheduler, "observe_time", told)
    return steps


def stream_beside_a_long_prompt(max_inter_token_ms: float) -> dict[str, list[int]]:
    """-> the tokens of both"""
    args = EngineArgs(model="smollm2", **OPTIONS, max_inter_token_ms=max_inter_token_ms)
    engine = LLMEngine.from_engine_args(args)
    draw = random.Random(7)
    tokens: dict[str, list[int]] = {"stream": [], "long": []}

    def add(name: str, length: int, max_tokens: int) -> None:
        prompt = {"prompt_token_ids": [draw.randrange(100, 48_000) for _ in range(length)]}
        kind = RequestOutputKind.DELTA
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, output_kind=kind)
        engine.add_request(name, prompt, params)

    add("stream", 20, 200)
    while engine.has_unfinished_requests() and len(tokens["long"]) < 3:
        for output in engine.step():
            tokens[output.request_id].extend(output.outputs[0].token_ids)
            if output.request_id == "stream" and not tokens["long"] and len(tokens["stream"]) == 20:
                add("long", PROMPT, 3)
    return tokens


def test_a_stream_goes_on_while_a_long_prompt_is_computed(prompt_steps: list[float]) -> None:
    tokens = stream_beside_a_long_prompt(1e3 * TARGET)
    _, *chunks = prompt_steps  # but the stream's own prompt
    prompt_steps.clear()
    tokens_without = stream_beside_a_long_prompt(0)
    _, *whole = prompt_steps
    assert tokens["long"] == tokens_without["long"]
    shared = min(len(found["stream"]) for found in (tokens, tokens_without))
    assert shared >= 21 and tokens["stream"][:shared] == tokens_without["stream"][:shared]
    assert len(tokens["stream"]) >= 20 + len(chunks), "a token with every chunk"
    assert len(chunks) >= 4 and max(chunks) <= TARGET
    assert len(whole) == 1 and whole[0] > SECONDS.token * PROMPT
