"""`thinking_token_budget` and logprobs of given tokens, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.sample_bench import Bench
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

VOCAB = 12
OPEN, CLOSE = [8], [9]


def left(prompt: list[int], output: list[int], budget: int, marks: list[list[int]]) -> list[int]:
    """Tokens the row can still draw; the row before it has another budget, the one after it none."""
    bench = Bench(VOCAB, num_rows=4, mode="processed_logprobs")
    bench.add(0, [1, 8, 2], thinking_token_budget=1, thinking_token_ids=[[8, 2], [5, 5, 6]], logprobs=-1)
    bench.add(1, prompt, output, thinking_token_budget=budget, thinking_token_ids=marks, logprobs=-1)
    bench.add(2, [8, 1, 1, 1], logprobs=-1)
    found = bench.sample([0, 1, 2], np.zeros((3, VOCAB)))
    entry = found.logprobs[1]
    assert np.isfinite(found.logprobs[2].logprobs_np).all() and np.isfinite(found.logprobs[0].logprobs_np).all()
    chances = dict(zip(entry.token_ids_np.tolist(), entry.logprobs_np.tolist(), strict=True))
    return sorted(token for token, chance in chances.items() if np.isfinite(chance))


EVERY = list(range(VOCAB))


@pytest.mark.parametrize(
    ("prompt", "output", "budget", "marks", "expected"),
    [
        ([1], [2, 3, 4], 2, [OPEN, CLOSE], EVERY),  # it does not think
        ([1], [8, 3], 2, [OPEN, CLOSE], EVERY),
        ([1], [8, 3, 4], 2, [OPEN, CLOSE], CLOSE),
        ([1], [8], 0, [OPEN, CLOSE], CLOSE),
        ([1, 8], [3], 1, [OPEN, CLOSE], CLOSE),  # the prompt has begun it
        ([1, 8, 3, 9], [4, 4, 4], 1, [OPEN, CLOSE], EVERY),  # and ended it
        ([1, 8, 3, 9], [8, 4], 1, [OPEN, CLOSE], CLOSE),  # the last thoughts count
        ([1], [8, 3, 4, 9, 5, 5, 5], 2, [OPEN, CLOSE], EVERY),
        ([1, 1, 1], [2, 2], 2, [[], CLOSE], CLOSE),  # the output begins with thoughts
        ([1, 9, 1], [2], 2, [[], CLOSE], EVERY),
        ([1, 9, 1], [2, 9, 3, 3], 2, [[], CLOSE], EVERY),
        ([1], [2, 3], 2, [[], [6, 7, 5]], [6]),  # an end of several tokens
        ([1], [2, 3, 6], 2, [[], [6, 7, 5]], [7]),
        ([1], [2, 3, 6, 7], 2, [[], [6, 7, 5]], [5]),
        ([1], [2, 3, 6, 7, 5], 2, [[], [6, 7, 5]], EVERY),
        ([1], [2, 6], 2, [[], [6, 7, 5]], [7]),  # its own beginning of the end counts
        ([1], [2, 7, 8], 1, [[7, 8], [6, 6]], EVERY),  # a beginning of several tokens
        ([1], [2, 7, 8, 4], 1, [[7, 8], [6, 6]], [6]),
        ([1, 7], [8, 4], 1, [[7, 8], [6, 6]], [6]),
    ],
)
def test_thoughts_over_budget_are_ended(
    prompt: list[int], output: list[int], budget: int, marks: list[list[int]], expected: list[int]
) -> None:
    assert left(prompt, output, budget, marks) == expected


tokens_st = st.lists(st.integers(0, 3), max_size=9)


@given(
    tokens_st.filter(len), tokens_st, st.integers(0, 4), tokens_st.map(lambda t: t[:3]), tokens_st.map(lambda t: t[:3])
)
@examples(30, 150)
def test_any_marks(prompt: list[int], output: list[int], budget: int, begin: list[int], end: list[int]) -> None:
    end = end or [3]
    assert left(prompt, output, budget, [begin, end]) == oracle(prompt, output, budget, begin, end)


def oracle(prompt: list[int], output: list[int], budget: int, begin: list[int], end: list[int]) -> list[int]:
    tokens = prompt + output
    begun = last_end(tokens, begin) if begin else len(prompt)
    if begun < 0 or last_end(tokens, end) > begun or len(tokens) - begun < budget:
        return EVERY
    said = max(count for count in range(len(end)) if not count or tokens[-count:] == end[:count])
    return [end[said]]


def last_end(tokens: list[int], mark: list[int]) -> int:
    ends = [at + len(mark) for at in range(len(tokens)) if tokens[at : at + len(mark)] == mark]
    return max(ends, default=-1)


def test_logprobs_of_given_tokens_beside_others() -> None:
    logits = np.random.default_rng(0).normal(size=(4, VOCAB)).astype(np.float32)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    bench = Bench(VOCAB, num_rows=6)
    bench.add(0, logprobs=2)
    bench.add(3, logprob_token_ids=[4, 11, 0], temperature=0)
    bench.add(4)
    bench.add(5, logprob_token_ids=[7], temperature=0)
    found = bench.sample([3, 0, 5, 4], logits).logprobs
    assert set(found) == {0, 3, 5} and len(found[0].token_ids_np) == 3
    for row, line, ids in ((3, 0, [4, 11, 0]), (5, 2, [7])):
        own = int(logits[line].argmax())
        assert found[row].token_ids_np.tolist() == [own, *ids] and found[row].rank == 1
        np.testing.assert_allclose(found[row].logprobs_np, wanted[line][[own, *ids]], atol=1e-5)
    bench.remove(3)
    bench.add(3, logprobs=1)
    assert len(bench.sample([3], logits[:1]).logprobs[3].token_ids_np) == 2
