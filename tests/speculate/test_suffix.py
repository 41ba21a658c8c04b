"""Suffix decoding beside the rows: which tokens of a row that ends are kept, and what is made of the options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadence.config.speculative import SpeculativeConfig
from cadence.core.contract.step import NewRow
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.suffix_ops import SuffixCorpus, SuffixRules
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.reference.suffix import ReferenceSuffixOps
from cadence.runner.state.requests import RequestRows
from cadence.speculate.choose import proposer_of
from cadence.speculate.suffix import EndedTexts, SuffixProposer, new_corpus

pytestmark = pytest.mark.device

NUM_ROWS, TAIL = 4, 2
CPU = torch.device("cpu")


def begun(row: int, tokens: list[int], prompt_len: int) -> NewRow:
    known_np = np.array(tokens, dtype=np.int32)
    return NewRow(row, f"r{row}", known_np, prompt_len, 0, (), SamplingParams(), 0, frozenset(), 60)


def kept(corpus: SuffixCorpus) -> list[int]:
    first, end, _ = corpus.span.tolist()
    return corpus.tokens[first:end].tolist()


class Tables:
    """Rows and what is kept of them, as a runner has them."""

    def __init__(self) -> None:
        self.rows = RequestRows(CpuDevice(1), NUM_ROWS, 64)
        self.corpus = new_corpus(10, CPU)
        self._tables = (self.rows, EndedTexts(ReferenceSuffixOps(), self.rows.state, self.corpus, TAIL))

    def apply(self, ended: tuple[int, ...], *requests: NewRow) -> None:
        for row in ended:
            for table in self._tables:
                table.remove(row)
        for request in requests:
            for table in self._tables:
                table.add(request.row, request)
        for table in self._tables:
            table.flush()

    def say(self, row: int, tokens: list[int], known: int) -> None:
        """The device has computed all it knew, and got some more."""
        state, length = self.rows.state, known + len(tokens)
        state.tokens[row, known:length] = torch.tensor(tokens, dtype=torch.int32)
        state.num_computed[row] = length - 1


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_what_a_row_said_is_kept_when_another_takes_it_in_the_same_plan(tables: Tables) -> None:
    tables.apply((), begun(1, [1, 2, 3, 4], 4))
    tables.say(1, [5, 6], 4)
    tables.apply((1,), begun(1, [7, 8, 9], 3))
    assert kept(tables.corpus) == [3, 4, 5, 6, -1]
    assert tables.rows.state.tokens[1, :3].tolist() == [7, 8, 9]
    tables.say(1, [10], 3)
    tables.apply((1,))
    assert kept(tables.corpus) == [3, 4, 5, 6, -1, 8, 9, 10, -1]


def test_after_a_preemption_only_the_rest_is_added(tables: Tables) -> None:
    tables.apply((), begun(0, [1, 2, 3], 3))
    tables.say(0, [4, 5, 6], 3)
    tables.apply((0,))
    tables.apply((), begun(2, [1, 2, 3, 4, 5, 6], 3))
    tables.say(2, [7], 6)
    tables.apply((2,))
    assert kept(tables.corpus) == [2, 3, 4, 5, 6, -1, 5, 6, 7, -1]


@pytest.mark.parametrize("row", [0, NUM_ROWS - 1])
def test_nothing_is_kept_of_prompts_and_dummies(tables: Tables, row: int) -> None:
    tables.apply((), begun(row, [1, 2, 3], 3))
    if row:  # the dummy row
        tables.say(row, [4, 5], 3)
    else:  # it ended in the middle of its prompt
        tables.rows.state.num_computed[row] = 1
    tables.apply((row,))
    tables.apply((row,))
    assert kept(tables.corpus) == []


def proposer(**keys: float) -> SuffixProposer:
    most = torch.full((NUM_ROWS,), 9, dtype=torch.int32)
    made = proposer_of(SpeculativeConfig("suffix", 9, **keys), ReferenceOps(), most)  # type: ignore[arg-type]
    assert isinstance(made, SuffixProposer)
    return made


@pytest.mark.parametrize(("most", "expected"), [(0, 0), (1, 1), (10_000, 10_000), (10**9, 16_384)])
def test_texts_that_have_room(most: int, expected: int, tables: Tables) -> None:
    made = proposer(suffix_decoding_max_cached_requests=most)
    assert new_corpus(most, CPU).most_texts == expected
    assert len(made.tables(tables.rows.state)) == (1 if most else 0)


def test_options_become_rules() -> None:
    assert proposer().rules == SuffixRules(24, 1_000_000, 100_000)
    found = proposer(suffix_decoding_max_tree_depth=7, suffix_decoding_max_spec_factor=0.3).rules
    assert found == SuffixRules(7, 300_000, 100_000)
    found = proposer(suffix_decoding_max_spec_factor=1e6, suffix_decoding_min_token_prob=1).rules
    assert found == SuffixRules(24, 10**9, 10**6)
