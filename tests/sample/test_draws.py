"""What is drawn: its distribution, its seeds, and what happens when nothing can be drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cadence.core.contract.step import NO_TOKEN
from cadence.core.errors import ConfigError
from cadence.core.sampling_params import SamplingParams
from cadence.sample.output import BAD_MODEL, NO_TOKEN_LEFT
from tests.helpers.sample_bench import Bench, oracle, some_logits

pytestmark = pytest.mark.device


def test_greedy_takes_the_lowest_of_equal_maxima() -> None:
    bench = Bench(vocab=50_000)
    bench.add(0, temperature=0)
    bench.add(1, temperature=0)
    logits = some_logits(2, 50_000)
    logits[:, [41_003, 17, 40_000]] = 99.0
    assert bench.sample([0, 1], logits).tokens == [17, 17]


def test_a_row_never_added_is_harmless_and_greedy() -> None:
    bench = Bench(vocab=5)
    bench.add(1, temperature=0.5, top_p=0.5, min_p=0.1)
    result = bench.sample([0, 1], [[0, 0, 9, 0, 0], [0, 0, 0, 9, 0]])
    assert result.tokens == [2, 3]
    assert not result.errors


def test_seeds_use_all_64_bits() -> None:
    bench, draws = Bench(vocab=1000, num_rows=5), set()
    for row, seed in enumerate([0, 1, 1 << 32, 1 << 63, (1 << 64) - 1]):
        bench.add(row, sampler_seed=seed)
        draws.add(bench.sample([row], np.zeros(1000)).tokens[0])
    assert len(draws) == 5


def test_a_draw_depends_on_the_position_and_nothing_else() -> None:
    bench, again = Bench(vocab=1000), Bench(vocab=1000)
    bench.add(0, prompt=[1, 2], output=[3], sampler_seed=7)
    bench.add(1, prompt=[9, 9, 9], sampler_seed=7)
    bench.add(2, prompt=[9, 9, 9], output=[3], sampler_seed=7)
    first, second, later = bench.sample([0, 1, 2], np.zeros((3, 1000))).tokens
    assert first == second != later
    again.add(4, prompt=[1, 2], output=[3], sampler_seed=7)
    assert again.sample([4], np.zeros(1000)).tokens == [first]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.1, "temperature": 1.7},
        {"top_k": 5, "top_p": 0.8, "temperature": 1.3},
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.3},
    ],
    ids=str,
)
def test_frequencies_match_the_distribution(sampling: dict[str, Any]) -> None:
    """Chi-square over 6000 draws: seeds are fixed, so this passes or fails for good."""
    vocab, rows, positions = 8, 500, 12
    logits, prompt, output = some_logits(vocab, seed=3), [1, 2, 2], [2, 5, 5]
    expected = oracle(logits, prompt, output, SamplingParams(**sampling)) * rows * positions
    bench, counts = Bench(vocab, num_rows=rows), np.zeros(vocab)
    for row in range(rows):
        bench.add(row, prompt, output, sampler_seed=row, **sampling)
    for _ in range(positions):
        np.add.at(counts, bench.sample(range(rows), np.tile(logits, (rows, 1))).tokens, 1)
        bench.tokens[:, 6:] = 2  # longer prompts of the same two tokens: another position, the same distribution
        bench.prompt_lens += 1
        bench.lengths += 1
        bench.tokens[:, : bench.prompt_lens[0]] = torch.tensor([1] + [2] * (bench.prompt_lens[0] - 1))
        bench.tokens[:, bench.prompt_lens[0] : bench.lengths[0]] = torch.tensor(output)
    assert not counts[expected == 0].any()
    possible = expected > 0
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 30  # 7 degrees of freedom: exceeded by chance once in ten thousand


def test_nan_fails_its_own_row_only() -> None:
    bench = Bench(vocab=6)
    for row, sampling in enumerate([{"temperature": 0}, {}, {"allowed_token_ids": [1]}, {"temperature": 0}, {}]):
        bench.add(row, **sampling)
    logits = some_logits(5, 6)
    logits[0, 3] = logits[1, 2] = logits[2, 5] = math.nan  # row 2 could not even choose the broken token
    result = bench.sample(range(5), logits)
    assert sorted(result.errors) == [0, 1, 2]
    assert set(result.errors.values()) == {BAD_MODEL}
    assert result.tokens[3] == int(logits[3].argmax())
    assert [token == NO_TOKEN for token in result.tokens] == [True, True, True, False, False]


def test_infinite_logits_are_an_error_and_minus_infinity_is_not() -> None:
    bench = Bench(vocab=3)
    for row in range(3):
        bench.add(row, temperature=0)
    inf = math.inf
    result = bench.sample([0, 1, 2], [[inf, 0, 0], [-inf, 1, -inf], [-inf, -inf, -inf]])
    assert sorted(result.errors) == [0, 2]
    assert result.tokens[1] == 1


def test_a_row_left_without_a_token_says_so() -> None:
    bench = Bench(vocab=4)
    bench.add(0, temperature=0, allowed_token_ids=[2], min_tokens=1, max_tokens=5, stops=[2])
    bench.add(1, temperature=0)
    result = bench.sample([0, 1], some_logits(2, 4))
    assert result.errors == {0: NO_TOKEN_LEFT} and "allowed_token_ids" in NO_TOKEN_LEFT.message


def test_an_unknown_logprobs_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="raw_logprobs"):
        Bench(vocab=4, mode="raw")


def test_no_lines_give_no_tokens() -> None:
    bench = Bench(vocab=4)
    assert bench.sample([], np.zeros((0, 4))).tokens == []
