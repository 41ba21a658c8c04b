"""Logprobs of sampled and of prompt tokens against log_softmax."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from cadence.core.contract.step import NewRow, PromptLogprobs
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.sample import lines
from cadence.sample.filters import leading_of_candidates
from cadence.sample.logprobs import Scores
from cadence.sample.prompt_logprobs import PromptLogprobsTable
from cadence.sample.prompt_slice import PromptSlice
from cadence.sample.top_tokens import top_tokens
from tests.helpers.sample_bench import Bench, some_logits

pytestmark = pytest.mark.device


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def best_first(line: np.ndarray) -> list[int]:
    return sorted(range(len(line)), key=lambda token: (-line[token], token))


@pytest.mark.parametrize("vocab", [1, 7, 1000])
def test_top_tokens_are_those_of_a_sort_by_logit_then_id(vocab: int) -> None:
    logits = np.round(some_logits(4, vocab, seed=1))
    logits[1] = 0.0
    logits[2, : vocab // 2] = -np.inf
    for k in {0, 1, vocab // 3, vocab}:
        found = top_tokens(torch.from_numpy(logits), k).tolist()
        assert found == [best_first(line)[:k] for line in logits]


@pytest.mark.parametrize("wanted", [0, 1, 5, -1, 99])
def test_logprobs_of_a_sampled_token(wanted: int) -> None:
    vocab = 40
    logits = some_logits(3, vocab, seed=2)
    bench = Bench(vocab)
    bench.add(0, logprobs=wanted, temperature=2.0, top_k=30, sampler_seed=4)
    bench.add(1)
    bench.add(2, logprobs=3)  # another count in the same step
    result = bench.sample([1, 0, 2], logits[[1, 0, 2]])
    assert sorted(result.logprobs) == [0, 2]
    line, token, found = logits[0], result.tokens[1], result.logprobs[0]
    k = vocab if wanted in (-1, 99) else wanted
    assert found.token_ids_np.tolist() == [token, *best_first(line)[:k]]
    np.testing.assert_allclose(found.logprobs_np, log_softmax(line)[found.token_ids_np], atol=1e-5)
    assert found.rank == best_first(line).index(token) + 1
    assert found.logprobs_np.dtype == np.float32
    assert found.token_ids_np.dtype == np.int32
    assert len(result.logprobs[2].token_ids_np) == 4


def test_rank_counts_strictly_greater_logits() -> None:
    bench = Bench(vocab=4)
    bench.add(0, logprobs=1, allowed_token_ids=[2], temperature=0)
    assert bench.sample([0], [5.0, 1.0, 1.0, 1.0]).logprobs[0].rank == 2


def test_modes() -> None:
    logits = np.array([2.0, 1.0, 0.5, -1.0], np.float32)
    halved = np.array([4.0, 2.0, 1.0, -np.inf])
    expected = {
        "raw_logits": logits,
        "raw_logprobs": log_softmax(logits),
        "processed_logits": halved,
        "processed_logprobs": log_softmax(halved),
    }
    for mode, values in expected.items():
        bench = Bench(vocab=4, mode=mode)
        bench.add(0, logprobs=-1, temperature=0.5, top_k=3)
        found = bench.sample([0], logits).logprobs[0]
        np.testing.assert_allclose(found.logprobs_np[1:], values[found.token_ids_np[1:]], atol=1e-6)


# Prompt logprobs. The "model": the hidden state of a token is itself, its logits a line of this matrix.
VOCAB = 30
TRANSITIONS = some_logits(VOCAB, VOCAB, seed=8)


class PromptBench:
    def __init__(self, prompts: dict[int, list[int]], mode: str = "raw_logprobs", **wanted: int | None) -> None:
        self.device = CpuDevice()
        self.table = PromptLogprobsTable(self.device, 8, VOCAB, mode)
        self.tokens = torch.zeros((8, 700), dtype=torch.int32)
        self.calls: list[int] = []  # positions per call of the model's head
        for row, prompt in prompts.items():
            self.tokens[row, : len(prompt)] = torch.tensor(prompt)
            self.add(row, prompt, wanted.get(f"row{row}"))

    def add(self, row: int, prompt: list[int], wanted: int | None) -> None:
        sampling = SamplingParams(prompt_logprobs=wanted)
        self.table.add(row, NewRow(row, "", np.array(prompt), len(prompt), 0, (), sampling, 0, frozenset(), 700))
        self.table.flush()

    def head(self, hidden: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(lines))
        return torch.from_numpy(TRANSITIONS)[hidden[lines, 0].long()]

    def step(self, *runs: tuple[int, int, int]) -> dict[int, PromptLogprobs]:
        """Runs (row, first position, number of tokens) computed together."""
        hidden = torch.cat([self.tokens[row, first : first + n] for row, first, n in runs])[:, None].float()
        starts = np.cumsum([0, *(n for _, _, n in runs)])
        step = PromptSlice(np.array([r for r, _, _ in runs]), starts, np.array([f for _, f, _ in runs]), self.tokens)
        pending = self.table.collect(hidden, step, None, partial(self.head, hidden))
        return pending.unpack(self.device.download(pending.tensors()).wait())


def check(found: PromptLogprobs, prompt: list[int], start: int, length: int, k: int) -> None:
    assert found.start == start
    assert found.token_ids_np.shape == found.logprobs_np.shape == (length, 1 + k)
    for i in range(length):
        before, token = prompt[start + i - 1], prompt[start + i]
        line = TRANSITIONS[before]
        assert found.token_ids_np[i].tolist() == [token, *best_first(line)[:k]]
        np.testing.assert_allclose(found.logprobs_np[i], log_softmax(line)[found.token_ids_np[i]], atol=1e-5)
        assert found.ranks_np[i] == best_first(line).index(token) + 1


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_prompt_logprobs_in_chunks_cover_every_token_but_the_first_once(chunk: int) -> None:
    prompt = prompt_of(20)
    bench = PromptBench({2: prompt}, row2=3)
    found: list[PromptLogprobs] = []
    for first in range(0, 20, chunk):
        assert bench.table.active(np.array([2])) == (first < 19)
        found += bench.step((2, first, min(chunk, 20 - first))).values()
    assert [i for part in found for i in range(part.start, part.start + len(part.ranks_np))] == list(range(1, 20))
    for part in found:
        check(part, prompt, part.start, len(part.ranks_np), 3)
    assert not bench.table.active(np.array([2]))
    assert bench.step((2, 20, 1)) == {}


def test_rows_with_different_counts_share_a_step() -> None:
    prompts = {1: prompt_of(9, 1), 3: prompt_of(12, 2), 4: prompt_of(5, 3), 6: prompt_of(6, 4)}
    bench = PromptBench(prompts, row1=0, row3=4, row6=-1)
    found = bench.step((4, 0, 5), (3, 2, 4), (6, 0, 6), (1, 3, 6))
    assert sorted(found) == [1, 3, 6]
    check(found[3], prompts[3], 3, 4, 4)
    check(found[6], prompts[6], 1, 5, VOCAB)
    check(found[1], prompts[1], 4, 5, 0)
    assert bench.table.active(np.array([3]))
    assert not bench.table.active(np.array([1, 4, 6]))


def test_logits_never_exist_for_more_than_256_positions() -> None:
    prompts = {0: prompt_of(600), 1: prompt_of(40, 1)}
    bench = PromptBench(prompts, row0=1, row1=1)
    found = bench.step((0, 0, 600), (1, 0, 40))
    assert max(bench.calls) == 256
    assert sum(bench.calls) == 599 + 39
    check(found[0], prompts[0], 1, 599, 1)
    check(found[1], prompts[1], 1, 39, 1)


def test_a_prompt_of_one_token_has_none() -> None:
    bench = PromptBench({0: [4]}, row0=5)
    assert bench.step((0, 0, 1)) == {}
    assert bench.calls == []


def test_a_resumed_row_begins_again_and_leaves_out_its_output() -> None:
    prompt = prompt_of(6)
    bench = PromptBench({0: prompt}, row0=2)
    bench.step((0, 0, 4))
    bench.table.remove(0)
    assert not bench.table.active(np.array([0]))
    bench.add(0, prompt, 2)
    check(bench.step((0, 0, 9))[0], prompt, 1, 5, 2)


def test_prompt_logits_mode() -> None:
    bench: Any = PromptBench({0: [4, 9]}, mode="raw_logits", row0=0)
    assert bench.step((0, 0, 2))[0].logprobs_np[0, 0] == TRANSITIONS[4, 9]


@pytest.mark.parametrize("k", [0, 3, 90])
@pytest.mark.parametrize("as_logits", [False, True])
def test_scores_made_in_pieces_are_those_made_at_once(k: int, as_logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, tokens = torch.from_numpy(some_logits(17, 90, seed=8)), torch.arange(17)
    at_once = Scores.empty(17, k, logits.device).fill(logits, tokens, as_logits)
    for lines_at_once in (1, 4):
        monkeypatch.setitem(lines._PIECE_BYTES, "cpu", lines_at_once * 90 * 4)
        assert next(lines.line_pieces(logits)) == slice(0, lines_at_once)
        pieces = Scores.empty(17, k, logits.device).fill(logits, tokens, as_logits)
        for ours, plain in zip(pieces.tensors(), at_once.tensors(), strict=True):
            assert torch.equal(ours, plain)


def test_filters_in_pieces_do_what_they_do_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, top_p = torch.from_numpy(some_logits(9, 50, seed=3)), torch.linspace(0.1, 0.99, 9)

    def keep(part: torch.Tensor, index: lines.LineIndex) -> torch.Tensor:
        return leading_of_candidates(part, top_p[index], 10)

    monkeypatch.setitem(lines._PIECE_BYTES, "cpu", 2 * 50 * 4)
    picked = torch.tensor([7, 0, 3, 4, 8])
    assert torch.equal(lines.in_pieces(keep)(logits, slice(None)), keep(logits, slice(None)))
    assert torch.equal(lines.in_pieces(keep)(logits[picked], picked), keep(logits[picked], picked))


@pytest.mark.parametrize("vocab", [1, 1000, 300_000, 2**25])
def test_positions_at_once_are_bounded_by_their_bytes_whatever_the_vocabulary(vocab: int) -> None:
    table = PromptLogprobsTable(CpuDevice(), 1, vocab, "raw_logprobs")
    assert 1 <= table._at_once <= 256
    assert table._at_once == 1 or table._at_once * vocab * 4 <= 2**24
