"""Rows have as many drafts as pay, and those whose drafts do not pay have none: on a simulated clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cadence.core.contract.drafts import DRAFTS, DraftChanges
from cadence.scheduler.feature import Decodes
from cadence.scheduler.features.drafts.acceptance import VerifiedDrafts
from cadence.scheduler.features.drafts.cost import DraftCost
from cadence.scheduler.features.drafts.feature import HostDrafts
from cadence.scheduler.features.drafts.policy import DraftPolicy
from cadence.scheduler.plan import PlanDraft
from tests.helpers.draft_world import COSTS, Cost, DraftWorld, best_speed, plain_speed
from tests.helpers.wide import each_once, examples

MOST = 4
SHAPES = ["cpu", "jump", "tiles", "linear", "flat", "roofline"]
ROWS = [64, 1]
FORWARDS = [1, 8]  # of a plan; two plans are in flight


def make_world(cost: Cost, rows: int, right: float, **options: Any) -> DraftWorld:
    return DraftWorld(cost, np.full(rows, right), most=MOST, **options)


@pytest.mark.parametrize(("shape", "rows", "forwards"), each_once(SHAPES, ROWS, FORWARDS, turns=4))
def test_drafts_that_are_always_wrong_cost_next_to_nothing(shape: str, rows: int, forwards: int) -> None:
    cost = COSTS[shape]
    world = make_world(cost, rows, 0.0, num_forwards=forwards, depth=2)
    assert world.run(2000) >= 0.97 * plain_speed(cost, rows)
    assert world.run(2000) >= 0.98 * plain_speed(cost, rows), "later only probes cost"


@pytest.mark.parametrize(("shape", "rows"), each_once(SHAPES, ROWS, turns=4))
def test_drafts_that_are_always_right_are_used(shape: str, rows: int) -> None:
    cost = COSTS[shape]
    world = make_world(cost, rows, 1.0)
    assert world.run(2000) >= 0.95 * best_speed(cost, 1.0, rows, MOST)


@pytest.mark.parametrize(
    ("shape", "rows", "forwards", "right"), each_once(SHAPES, ROWS, FORWARDS, [0.3, 0.6, 0.9], turns=4)
)
def test_speed_settles_near_the_best(shape: str, rows: int, forwards: int, right: float) -> None:
    cost = COSTS[shape]
    world = make_world(cost, rows, right, num_forwards=forwards, depth=2)
    world.run(1000)
    speed = world.run(1000)
    assert speed >= 0.87 * best_speed(cost, right, rows, MOST)
    assert speed >= 0.96 * plain_speed(cost, rows), "never slower than none"


@pytest.mark.parametrize(("shape", "right"), each_once(SHAPES, [0.9, 0.5, 0.0], turns=4))
def test_where_empty_places_cost_the_best_width_is_found(shape: str, right: float) -> None:
    cost, rows = COSTS[shape], 16
    world = make_world(cost, rows, right, padded=True, depth=2)
    world.run(1000)
    widths = range(1, MOST + 2)
    best = max(rows * sum(right**i for i in range(width)) / cost(rows * width, rows) for width in widths)
    assert world.run(1500) >= 0.93 * best


@pytest.mark.parametrize(("shape", "rows", "padded"), each_once(SHAPES, ROWS, [False, True], turns=4))
def test_a_proposer_that_finds_nothing_costs_nothing(shape: str, rows: int, padded: bool) -> None:
    cost = COSTS[shape]
    world = make_world(cost, rows, 0.0, offers=0.0, padded=padded)
    assert world.run(2000) >= 0.97 * plain_speed(cost, rows)


@pytest.mark.parametrize(("shape", "forwards"), each_once(["cpu", "flat", "tiles"], FORWARDS))
def test_rare_drafts_that_are_right_are_used(shape: str, forwards: int) -> None:
    """As of a proposer that quotes: a draft now and then, and most are right."""
    cost = COSTS[shape]
    world = make_world(cost, 1, 0.9, offers=0.1, num_forwards=forwards)
    world.run(500)
    kept = 0.1 * sum(0.9**i for i in range(1, MOST + 1))
    best = (1 + kept) / (0.9 * cost(1, 1) + 0.1 * cost(1 + MOST, 1))
    assert world.run(3000) >= 0.93 * best > 1.05 * plain_speed(cost, 1)


@pytest.mark.parametrize("shape", ["cpu", "jump"])
def test_rare_drafts_that_are_wrong_are_given_up(shape: str) -> None:
    world = make_world(COSTS[shape], 1, 0.05, offers=0.2)
    assert world.run(2000) >= 0.97 * plain_speed(COSTS[shape], 1)


# What changes


@pytest.mark.parametrize(("shape", "rows", "depth"), each_once(["cpu", "jump", "flat", "tiles"], [1, 16], [1, 2]))
def test_text_becomes_predictable_and_ceases_to_be(shape: str, rows: int, depth: int) -> None:
    """It is found out by a probe, and the dearer probes are, the rarer they are."""
    cost, tokens = COSTS[shape], {"cpu": 120, "jump": 250}.get(shape, 80)
    world = make_world(cost, rows, 0.0, depth=depth)
    world.run(1000)
    for _ in range(2):
        world.right_np[:] = 0.95
        world.run(tokens)
        assert world.run(300) >= 0.8 * best_speed(cost, 0.95, rows, MOST)
        world.right_np[:] = 0.0
        world.run(50)
        assert world.run(500) >= 0.97 * plain_speed(cost, rows)


def test_only_rows_whose_drafts_are_right_have_drafts() -> None:
    world = DraftWorld(COSTS["cpu"], np.array([0.0, 0.95] * 4))
    world.run(1000)
    sent = np.zeros(8)
    for _ in range(200):
        world.step()
        sent += world.most_np
    assert (sent[0::2] < 20).all() and (sent[1::2] > 150).all()


@pytest.mark.parametrize(("shape", "right", "factor"), each_once(["cpu", "jump", "flat"], [0.0, 0.3, 0.9], [0.3, 3.0]))
def test_a_machine_becomes_slower_or_faster(shape: str, right: float, factor: float) -> None:
    before = COSTS[shape]
    world = make_world(before, 1, right)
    world.run(1000)
    world.cost = lambda tokens, rows: factor * before(tokens, rows)
    world.run(200)
    assert world.run(2000) >= 0.92 * best_speed(world.cost, right, 1, MOST)


@pytest.mark.parametrize(("right", "rows"), each_once([0.0, 0.95], [1, 16]))
def test_costs_of_drafts_change_alone(right: float, rows: int) -> None:
    """As when other programs take the cores that drafts ran on, and give them back."""
    world = make_world(COSTS["flat"], rows, right)
    world.run(1000)
    for cost in (COSTS["linear"], COSTS["flat"]):
        world.cost = cost
        world.run(4000)
        assert world.run(1000) >= 0.95 * best_speed(cost, right, rows, MOST)


@pytest.mark.parametrize(("shape", "right", "rows"), each_once(SHAPES, [0.0, 0.9], ROWS, turns=4))
def test_slow_outliers_mislead_nobody(shape: str, right: float, rows: int) -> None:
    cost = COSTS[shape]

    def noise(rng: np.random.Generator) -> float:
        return float(rng.uniform(0.95, 1.05)) * (30 if rng.random() < 0.02 else 1)

    world = make_world(cost, rows, right, noise=noise)
    world.run(500)
    speed = world.run(2000)
    assert speed >= 0.88 * best_speed(cost, right, rows, MOST)
    assert speed >= 0.94 * plain_speed(cost, rows)


@pytest.mark.parametrize("rows", [1, 16])
def test_first_launches_of_a_width_that_take_long_are_forgotten(rows: int) -> None:
    met: set[float] = set()

    def cost(tokens: float, rows: int) -> float:
        is_first = tokens not in met
        met.add(tokens)
        return COSTS["flat"](tokens, rows) * (100 if is_first else 1)

    world = make_world(cost, rows, 0.9)
    world.run(500)
    assert world.run(2000) >= 0.9 * best_speed(COSTS["flat"], 0.9, rows, MOST)


@pytest.mark.parametrize(("shape", "right", "rows"), each_once(SHAPES, [0.0, 0.7, 0.95], ROWS, turns=4))
def test_drafts_of_a_row_seldom_change(shape: str, right: float, rows: int) -> None:
    world = make_world(COSTS[shape], rows, right)
    world.run(1000)
    assert world.num_changes <= 0.13 * rows * len(world.widths)


# Requests


def serve(policy: DraftPolicy, right: float, num_requests: int, num_tokens: int = 40) -> list[int]:
    """Requests one after another on row 0 of a CPU -> drafts that each had first"""
    world = make_world(COSTS["cpu"], 1, right)
    world.policy, first = policy, []
    for _ in range(num_requests):
        world.most_np[0] = policy.begin(0, MOST)
        first.append(int(world.most_np[0]))
        world.run(num_tokens)
    return first


def test_a_request_begins_as_those_before_it_went() -> None:
    policy = DraftPolicy(MOST, 1, adaptive=True)
    assert min(serve(policy, 0.95, 20)[10:]) >= 3
    assert serve(policy, 0.0, 40)[-10:] == [0] * 10, "hopeless"
    assert max(serve(policy, 0.95, 40)[-10:]) >= 1, "some were tried"


def test_short_requests_whose_drafts_are_wrong_cost_next_to_nothing() -> None:
    world = make_world(COSTS["cpu"], 1, 0.0)
    for _ in range(100):
        world.most_np[0] = world.policy.begin(0, MOST)
        world.run(20)
    assert world.tokens_np.sum() / world.seconds >= 0.97 * plain_speed(COSTS["cpu"], 1)


def test_without_adaptation_rows_have_what_they_ask_for() -> None:
    policy = DraftPolicy(MOST, 4, adaptive=False)
    assert [policy.begin(row, asked) for row, asked in enumerate((3, 0, 9))] == [3, 0, MOST]
    for rows, width in (([0, 1], 4), ([1], 1), ([0, 2], 5), ([], 1)):
        rows_np = np.array(rows, np.int64)
        assert policy.choose(rows_np) == ([], width)
        shape = (2, len(rows))
        policy.observe(rows_np, np.ones(shape, np.int64), np.ones(shape, np.int64))
        policy.observe_time(len(rows), 2, 2.0 * len(rows), 0.1)


def test_rows_that_ask_for_none_have_none() -> None:
    world = make_world(COSTS["flat"], 4, 0.95)
    world.most_np[1] = world.policy.begin(1, 0)
    world.most_np[2] = world.policy.begin(2, 2)
    seen = []
    for _ in range(600):
        world.step()
        seen.append(world.most_np.copy())
    assert np.max(seen, axis=0).tolist() == [4, 0, 2, 4]


# Parts


def test_every_shape_is_tried() -> None:
    assert set(SHAPES) == set(COSTS)


def test_drafts_after_a_wrong_one_are_not_tested() -> None:
    drafts_np, tokens_np = np.array([[4, 4, 0, 4, 2], [4, 0, 0, 4, 0]]), np.array([[5, 1, 1, 3, 0], [2, 1, 1, 1, 0]])
    seen = VerifiedDrafts.of(drafts_np, tokens_np)
    assert seen.drafts_np.tolist() == [8, 4, 0, 8, 0]
    assert seen.accepted_np.tolist() == [5, 0, 0, 2, 0]
    assert seen.tested_np.tolist() == [6, 1, 0, 4, 0], "row 4 had ended"
    assert seen.forwards_np.tolist() == [2, 2, 2, 2, 0]


@pytest.mark.parametrize("forwards", [1, 8])
def test_plans_in_flight_do_not_say_that_there_were_no_drafts(forwards: int) -> None:
    world = make_world(COSTS["jump"], 16, 0.7, num_forwards=forwards, depth=2)
    world.run(1000)
    assert world.num_changes > 50
    assert world.policy._acceptance.share_np.min() > 0.98, "rows had all the drafts that they might have"


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_costs_are_learned(shape: str, rows: int) -> None:
    """Where they were measured, but for what lies between."""
    cost, known = COSTS[shape], DraftCost(MOST)
    for _ in range(10):
        for k in range(MOST + 1):
            known.observe(rows, rows * (1 + k), cost(rows * (1 + k), rows))
    curve = known.of(rows).curve
    for k in range(MOST + 1):
        assert curve.cost(1 + k) == pytest.approx(cost(rows * (1 + k), rows) / cost(rows, rows))


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_costs_that_are_not_measured_change_with_those_that_are(factor: float) -> None:
    known = DraftCost(MOST)
    for x, seconds in ((1, 1.0), (2, 1.5), (3, 2.0)) * 9 + ((1, factor),) * 60:
        known.observe(4, 4 * x, seconds)
    curve = known.of(4).curve
    assert [curve.cost(x) for x in (2, 3)] == pytest.approx([1.5, 2.0], rel=0.05)


def test_costs_of_other_numbers_of_rows_have_the_shape_of_the_nearest() -> None:
    known = DraftCost(MOST)
    for _ in range(3):
        for x, seconds in ((1, 1.0), (3, 2.0)):
            known.observe(1, x, seconds)
            known.observe(64, 64 * x, 9 * seconds**2)
    known.observe(40, 40, 5.0)
    assert known.of(2).curve.cost(3) == pytest.approx(2)
    assert known.of(40).curve.cost(3) == pytest.approx(4)
    assert known.of(256).curve.cost(3) == pytest.approx(4)


# Bounds


@examples(20, 60)
@given(data=st.data(), most=st.integers(0, 8), num_rows=st.integers(1, 6), padded=st.booleans())
def test_whatever_is_observed_drafts_stay_within_what_was_asked(
    data: st.DataObject, most: int, num_rows: int, padded: bool
) -> None:
    policy = DraftPolicy(most, num_rows, adaptive=True, padded=padded)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    asked_np, sent_np = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    for _ in range(data.draw(st.integers(1, 60))):
        if rng.random() < 0.2:
            row, asked_of_row = int(rng.integers(num_rows)), int(rng.integers(0, most + 3))
            asked_np[row], sent_np[row] = min(asked_of_row, most), policy.begin(row, asked_of_row)
        rows_np = rng.permutation(num_rows)[: rng.integers(0, num_rows + 1)]
        changes, width = policy.choose(rows_np)
        for row, drafts in changes:
            assert row in rows_np and drafts != sent_np[row]
            sent_np[row] = drafts
        assert (sent_np >= 0).all() and (sent_np <= asked_np).all()
        assert width == 1 + sent_np[rows_np].max(initial=0)
        m, s = int(rng.integers(1, 4)), len(rows_np)
        drafts_np = rng.integers(0, most + 1, (m, s))
        policy.observe(rows_np, drafts_np, rng.integers(0, drafts_np + 2))
        if s and rng.random() < 0.8:
            policy.observe_time(
                s, m, s + float(drafts_np.sum()) / m, float(rng.exponential(10.0 ** rng.integers(-6, 3)))
            )


class Choosing(DraftPolicy):
    """Chooses three drafts for row 0, once."""

    def __init__(self) -> None:
        super().__init__(MOST, 2, adaptive=True)
        self._chosen = [(0, 3)]

    def choose(self, rows_np: np.ndarray) -> tuple[list[tuple[int, int]], int]:
        chosen, self._chosen = self._chosen, []
        return chosen, 4


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_choice_of_which_no_device_hears_is_told_with_the_next_plan(begins_anew: bool) -> None:
    feature = HostDrafts(Choosing(), 2)
    one_np = np.zeros(1, dtype=np.int64)
    decodes = Decodes(one_np, one_np + 1, one_np.copy(), waiting=False)
    books: Any = SimpleNamespace(budget=SimpleNamespace(step=100))
    lost, sent, later = PlanDraft(1), PlanDraft(1), PlanDraft(2)
    feature.widen(lost, books, decodes)
    feature.dropped(lost)
    if begins_anew:  # with another request
        params = SimpleNamespace(num_draft_tokens=lambda most: most)
        request: Any = SimpleNamespace(row=0, needs_host=False, request=SimpleNamespace(params=params))
        feature.begin(request, sent)
    feature.widen(sent, books, decodes)
    feature.widen(later, books, decodes)
    told = [draft.payloads.get(DRAFTS, DraftChanges()).most for draft in (lost, sent, later)]
    assert told == [[(0, 3)], [] if begins_anew else [(0, 3)], []]
