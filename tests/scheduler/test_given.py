"""Tokens that a grammar forces are drafts: they stay with the rows of their step."""

from __future__ import annotations

import numpy as np

from cadence.core.contract.step import NO_TOKEN, IntArray, StepPlan, StepResult
from cadence.core.grammar import GRAMMAR
from cadence.scheduler.features.grammar.feature import GrammarOutputs
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_engine import make_cache, make_config
from tests.helpers.toy_model import VOCAB, make_layout, make_request


class AlwaysSeven:
    """Every token must be 7."""

    num_words = -(-VOCAB // 32)
    finished = False
    error = ""

    def accept(self, token: int) -> bool:
        return token == 7

    def rollback(self, count: int) -> None:
        """There is no state."""

    def ahead(self, most: int) -> list[int]:
        return [7] * most

    def fill(self, mask_np: IntArray) -> None:
        mask_np[:] = 1 << 7


def test_drafts_of_a_row_that_loses_its_blocks_are_not_in_the_plan() -> None:
    """The elder one's prompt goes on in chunks and takes the blocks of the younger one, which had drafts."""
    config = make_config(max_num_seqs=16, max_num_batched_tokens=64, long_prefill_token_threshold=16)
    scheduler = Scheduler(config, make_cache(4), make_layout((0,), 4), 17, 64, [GrammarOutputs()])
    scheduler.add(make_request("old", [1] * 58, 4))
    scheduler.add(make_request("young", [2] * 3, 30), {GRAMMAR: AlwaysSeven()})
    given = []
    while not scheduler.stats().num_preemptions:
        plan = scheduler.schedule()
        given.append(dict(plan.payloads.get(GRAMMAR, ())))
        assert given[-1].keys() <= set(plan.rows_np.tolist())
        if plan.waits:
            scheduler.mail(scheduler.in_flight(plan.step_id))
        scheduler.update(all_sevens(plan))
    assert any(given) and not given[-1]


def all_sevens(plan: StepPlan) -> StepResult:
    """All drafts were right."""
    lines_np = plan.num_samples_np[plan.num_samples_np > 0]
    tokens_np = np.full((1, len(lines_np), lines_np.max(initial=1)), NO_TOKEN, dtype=np.int32)
    for row_np, lines in zip(tokens_np[0], lines_np, strict=True):
        row_np[:lines] = 7
    return StepResult(plan.step_id, tokens_np, (lines_np - 1)[None])
