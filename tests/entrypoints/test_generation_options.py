"""Options that bound or describe an output, by the real engine: held to transformers and to plain Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.core.errors import InvalidRequestError
from cadence.core.flat_logprobs import FlatLogprobs
from cadence.core.outputs import CompletionOutput
from tests.helpers import oracle
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.engine

PROMPT = [5, 9, 30, 7, 100]


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module", params=[1, 8], ids=["step by step", "in bursts"])
def llm(directory: Path, request: pytest.FixtureRequest) -> LLM:
    return LLM(
        str(directory),
        dtype="float32",
        max_model_len=256,
        num_gpu_blocks_override=200,
        num_scheduler_steps=request.param,
    )


def run(llm: LLM, **options: Any) -> CompletionOutput:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **options})
    return llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0].outputs[0]


def test_a_budget_ends_thoughts_where_transformers_would_be_made_to(llm: LLM, directory: Path) -> None:
    model = oracle.load_oracle(directory)
    end = [3, 4]
    for budget in (0, 5):
        tokens = list(PROMPT)
        for number in range(12):
            forced = budget <= number < budget + len(end)
            tokens.append(end[number - budget] if forced else oracle.greedy(model, tokens, 1)[0])
        found = run(llm, max_tokens=12, thinking_token_budget=budget, thinking_token_ids=[[], end])
        assert list(found.token_ids) == tokens[len(PROMPT) :]
    free = run(llm, max_tokens=12)
    assert run(llm, max_tokens=12, thinking_token_budget=50, thinking_token_ids=[[], end]) == free
    assert run(llm, max_tokens=12, thinking_token_budget=-1) == free


def test_a_budget_needs_to_know_what_thoughts_look_like(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="how this model marks its reasoning") as caught:
        run(llm, thinking_token_budget=4)
    assert caught.value.field == "thinking_token_budget"


def first_repetition(tokens: list[int], low: int, high: int, count: int) -> int:
    """Tokens until one that ends a pattern of `low` to `high` tokens said `count` times; all if there is none."""
    for length in range(1, len(tokens) + 1):
        for size in range(low, high + 1):
            tail = tokens[max(length - size * count, 0) : length]
            if len(tail) == size * count and tail == tail[-size:] * count:
                return length
    return len(tokens)


PATTERNS = [(0, 1, 2), (1, 3, 2), (2, 6, 3), (1, 10, 2), (4, 9, 2)]  # (tokens at least, at most, how often)


@pytest.mark.parametrize(("low", "high", "count"), mostly_wide_rows(PATTERNS, [PATTERNS[0], PATTERNS[2]]))
def test_outputs_that_repeat_are_ended(llm: LLM, low: int, high: int, count: int) -> None:
    detection = {"min_pattern_size": low, "max_pattern_size": high, "min_count": count}
    endings = set()
    for seed in range(3):
        drawn: dict[str, Any] = {"temperature": 0.3, "seed": seed, "max_tokens": 60, "top_k": 3}
        drawn["allowed_token_ids"] = [10, 11, 12]  # what has few words repeats itself
        free = run(llm, **drawn)
        wanted = first_repetition(list(free.token_ids), max(low, 1), high, count)
        found = run(llm, **drawn, repetition_detection=detection)
        assert list(found.token_ids) == list(free.token_ids)[:wanted]
        reasons = ("length", None) if wanted == 60 else ("repetition", "repetition_detected")
        assert (found.finish_reason, found.stop_reason) == reasons and free.text.startswith(found.text)
        later = run(llm, **drawn, repetition_detection=detection, min_tokens=wanted + 1 if wanted < 60 else 60)
        assert len(later.token_ids) > wanted or wanted == 60
        endings.add(found.finish_reason)
    assert "repetition" in endings


def test_logprobs_of_given_tokens(llm: LLM, directory: Path) -> None:
    wanted = oracle.logprobs(oracle.load_oracle(directory), [*PROMPT, *run(llm, max_tokens=6).token_ids])
    found = run(llm, max_tokens=6, logprob_token_ids=[40, 7, 200])
    assert found.logprobs is not None and len(found.logprobs) == 6
    for number, (token, position) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
        assert next(iter(position)) == token
        assert set(position) == {token, 40, 7, 200} and position[token].rank == 1
        for other, entry in position.items():
            assert entry.logprob == pytest.approx(float(wanted[len(PROMPT) - 1 + number, other]), abs=1e-4)


def test_flat_logprobs_read_like_a_list(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "logprobs": 2, "prompt_logprobs": 1}
    params = SamplingParams(temperature=0, **options)
    plain = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0]
    params = SamplingParams(temperature=0, **options, flat_logprobs=True)
    output = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0]
    flat, prompt = output.outputs[0].logprobs, output.prompt_logprobs
    assert isinstance(flat, FlatLogprobs) and isinstance(prompt, FlatLogprobs)
    assert list(flat) == plain.outputs[0].logprobs and len(flat) == 5 and flat[-1] == list(flat)[4]
    assert list(flat[1:3]) == list(flat)[1:3] and isinstance(flat[1:3], FlatLogprobs) and not flat[3:3]
    assert [position or None for position in prompt] == plain.prompt_logprobs
    assert flat.end_indices[-1] == len(flat.token_ids) == len(flat.ranks) == len(flat.decoded_tokens)
