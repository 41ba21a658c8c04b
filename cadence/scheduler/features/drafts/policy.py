"""How many drafts each row may have, so that speculation is never slower than none.

Objective: the most tokens a second. docs/draft_policy.md has the transitions, and the reason of every constant.

| state of a plan | drafts of rows |
|---|---|
| fixed  | as asked: the policy is not adaptive |
| base   | none: the time of a forward without drafts is unknown or old, and is measured |
| choose | those of the greatest expected speed, and one of each row that probes |
| hold   | as they are: no choice is due |

A row drafts, is idle (its best number is 0), or probes (idle, but for one draft).
"""

from __future__ import annotations

import numpy as np

from cadence.scheduler.burst import power_of_two_above
from cadence.scheduler.features.drafts.acceptance import Acceptance, VerifiedDrafts
from cadence.scheduler.features.drafts.choice import DraftChoice, PaddedChoice, Prospects, RaggedChoice
from cadence.scheduler.features.drafts.cost import CostCurve, DraftCost, RowsCost
from cadence.scheduler.features.drafts.probes import DraftProbes

_WORTH = 1.02  # times the tokens a second without drafts: drafts begin where they bring more than that
_CHANGE = 0.16  # a change must bring this share of the speed, divided by the number of choices since the last
_OFTEN, _SELDOM = 4, 64  # forwards between choices, where something was learned and where nothing was
_CALM = 8  # choices without a change, after which they are made half as often
_IN_FLIGHT = 2  # plans that may return after a change and do not know of it
_BASE_AGE = 128  # plans after which one without drafts is measured again ...
_NARROW, _NARROW_AGE = 1.2, 24  # ... sooner where drafts bring less than that: a small error would hide a loss ...
_BASE_PLANS = 4  # ... so many in a row at most, if none is measured ...
_BASE_PAUSE = 64  # ... and again after so many


class DraftPolicy:
    """Learns from observations how often drafts are right and how long forwards take, and reads no clock.

    Rows have the drafts with which a forward is expected to bring the most tokens a second; those that would have none
    are probed now and then. A choice is made every few forwards, and the sooner after another, the more it must bring.
    What forwards take without drafts is measured first, and again from time to time.
    """

    def __init__(
        self,
        most: int,
        num_rows: int,
        adaptive: bool,
        padded: bool = False,
        by_model: bool = False,
        falls_behind: bool = False,
    ) -> None:
        """`most`: drafts of a row and forward. `padded`: a forward computes the plan's width for each of its rows.
        `falls_behind`: the model that drafts has no keys of tokens it was not asked for drafts at, until a plan says
        so."""
        self.most = most
        self.reserve = most if by_model else 0  # tokens after a row's newest that a model which drafts computes
        self.falls_behind = falls_behind
        self._adaptive = adaptive
        self.padded = padded
        self._choice: DraftChoice = PaddedChoice() if padded else RaggedChoice()
        self._acceptance = Acceptance(num_rows)
        self._cost = DraftCost(most)
        self._probes = DraftProbes(num_rows)
        self._asked_np = np.zeros(num_rows, np.int64)
        self._best_np = np.zeros(num_rows, np.int64)  # drafts of rows, as they pay
        self._sent_np = np.zeros(num_rows, np.int64)  # drafts of rows, as the device has been told ...
        self._steady_np = np.zeros(num_rows, np.int64)  # ... and forwards that returned since; those below 0 are older
        # what was observed and not yet learned from, by rows: rows [s], drafts [m, s], tokens [m, s]
        self._seen: dict[bytes, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._num_seen = 0  # forwards
        self._num_forwards = 1  # of a plan
        self._num_rows = 1  # of a plan
        self._is_awake = True  # rows may differ from what the device has been told, or a choice is overdue
        self._most_sent = 0  # drafts of any row in the last plan
        self._speed = 1.0  # expected with the drafts that rows have, as a multiple of that without
        self._may_pay = True  # drafts, if they are right
        self._has_learned = False  # since the last choice
        self._forwards_since_choice = 0
        self._choices_since_change = 0
        self._base_plans = 0  # in a row, of which none has returned
        self._base_pause = 0  # plans, if they did not return

    def begin(self, row: int, asked: int) -> int:
        """A request that wants at most `asked` drafts takes the row -> drafts that it may have first."""
        self._learn()
        asked = min(max(asked, 0), self.most)
        self._asked_np[row] = asked
        self._acceptance.begin(row)
        self._probes.begin(row)
        first = self._first(asked) if self._adaptive and asked else asked
        self._best_np[row] = self._sent_np[row] = first
        self._steady_np[row] = 0
        self._is_awake = True
        return first

    def choose(self, rows_np: np.ndarray) -> tuple[list[tuple[int, int]], int]:
        """Before a plan in which these rows decode -> rows whose most drafts change now, each with its new one; 1 + the
        most drafts of any."""
        sent_np = self._sent_np[rows_np]
        if self._adaptive and len(rows_np):
            cost = self._cost.of(len(rows_np))
            if self._wants_base(cost):
                return self._send(rows_np, sent_np, np.zeros_like(sent_np))
            if self._is_awake or self._is_due() or self._probes.may_start:
                return self._send(rows_np, sent_np, self._wanted(rows_np, cost.curve))
        self._most_sent = int(sent_np.max(initial=0))
        return [], 1 + self._most_sent

    def width(self, most: int) -> int:
        """Lines per row of a plan whose rows have at most so many drafts: as many, or one of few numbers, each of which
        is recorded."""
        return 1 + min(power_of_two_above(most), self.most) if self.padded and most else 1 + most

    def observe(self, rows_np: np.ndarray, drafts_np: np.ndarray, tokens_np: np.ndarray) -> None:
        """Rows [s] had drafts [m, s] in each of m forwards, of which tokens [m, s] came; 0: the row had ended."""
        if not (self._adaptive and drafts_np.size):
            return
        self._forwards_since_choice += len(drafts_np)
        self._probes.advance(len(drafts_np), self._may_pay)
        if self._most_sent or drafts_np.any():
            entry = (rows_np.copy(), drafts_np.copy(), tokens_np.copy())
            self._seen.setdefault(rows_np.tobytes(), []).append(entry)
            self._num_seen += len(drafts_np)
            if self._num_seen >= self._interval() or self._probes.are_any:
                self._learn()

    def observe_time(self, num_rows: int, num_forwards: int, tokens_per_forward: float, seconds: float) -> None:
        """A plan of decodes alone, of so many forwards that computed so many tokens on average, took `seconds`."""
        if self._adaptive and num_rows and num_forwards and seconds > 0:
            self._num_forwards, self._num_rows = num_forwards, num_rows
            self._cost.observe(num_rows, tokens_per_forward, seconds / num_forwards)

    def _first(self, asked: int) -> int:
        """Drafts of a row of which nothing is known but what requests are like, as if all rows were such."""
        one_np = np.ones(1)
        prospects = Prospects.of(one_np * self._acceptance.prior, one_np, one_np.astype(np.int64) * asked, one_np)
        choice = self._choice.best(prospects, self._cost.of(self._num_rows).curve, 1)
        return int(choice.drafts_np[0]) if choice.speed > _WORTH else 0

    def _wants_base(self, cost: RowsCost) -> bool:
        """Whether the next plan is to be one without drafts, to be measured."""
        self._base_pause -= 1
        if not cost.needs_base(_BASE_AGE if self._speed > _NARROW else _NARROW_AGE):
            self._base_plans = 0
            return False
        if self._base_pause > 0:
            return False
        self._base_plans += 1
        if self._base_plans >= _BASE_PLANS:
            self._base_plans, self._base_pause = 0, _BASE_PAUSE
        self._is_awake = True
        return True

    def _send(
        self, rows_np: np.ndarray, sent_np: np.ndarray, wanted_np: np.ndarray
    ) -> tuple[list[tuple[int, int]], int]:
        """What `choose` returns, if rows are to have these drafts."""
        self._most_sent = int(wanted_np.max())
        changed_np = np.flatnonzero(wanted_np != sent_np)
        if not len(changed_np):
            return [], 1 + self._most_sent
        self._learn()
        rows_np, wanted_np = rows_np[changed_np], wanted_np[changed_np]
        self._sent_np[rows_np] = wanted_np
        self._steady_np[rows_np] = -_IN_FLIGHT * self._num_forwards
        return list(zip(rows_np.tolist(), wanted_np.tolist())), 1 + self._most_sent

    def _is_due(self) -> bool:
        since = self._forwards_since_choice
        return since >= _SELDOM or (self._has_learned and (since >= self._interval() or self._probes.are_any))

    def _interval(self) -> int:
        """Forwards between choices."""
        return _OFTEN if self._choices_since_change < _CALM else 2 * _OFTEN

    def _wanted(self, rows_np: np.ndarray, curve: CostCurve) -> np.ndarray:
        """[n] drafts that rows are to have now."""
        self._is_awake = False
        if self._is_due():
            self._learn()
            self._decide(rows_np, curve)
        best_np = self._best_np[rows_np]
        if self._probes.may_start:
            idle_np = rows_np[(best_np == 0) & (self._asked_np[rows_np] > 0)]
            self._acceptance.doubt(self._probes.start(idle_np))
        wanted_np: np.ndarray = np.maximum(best_np, self._probes.is_probing_np[rows_np])
        return wanted_np

    def _decide(self, rows_np: np.ndarray, curve: CostCurve) -> None:
        self._has_learned, self._forwards_since_choice = False, 0
        self._choices_since_change += 1
        self._may_pay = curve.may_pay
        asked_np, now_np, acceptance = self._asked_np[rows_np], self._best_np[rows_np], self._acceptance
        if not asked_np.any():
            return
        prospects = Prospects.of(acceptance.probability_np[rows_np], acceptance.share_np[rows_np], asked_np, now_np)
        choice = self._choice.best(prospects, curve, self._num_forwards)
        best_np, speed = choice.drafts_np, choice.speed
        if speed <= (1.0 if now_np.any() else _WORTH):
            best_np, speed = np.zeros_like(now_np), 1.0
        self._speed = choice.current
        if speed > choice.current * (1 + _CHANGE / self._choices_since_change):
            self._choices_since_change, self._speed = 0, speed
            self._best_np[rows_np] = best_np
            self._probes.stop(rows_np[(now_np > 0) & (best_np == 0)])
            with_np = rows_np[best_np > 0]
            self._probes.succeed(with_np, acceptance.is_settled(with_np))

    def _learn(self) -> None:
        """From all that was observed since the last time, meanwhile no row was told to have other drafts."""
        seen, self._seen, self._num_seen = self._seen, {}, 0
        for entries in seen.values():
            rows_np, drafts, tokens = zip(*entries)
            self._learn_from(rows_np[0], VerifiedDrafts.of(np.concatenate(drafts), np.concatenate(tokens)))

    def _learn_from(self, rows_np: np.ndarray, seen: VerifiedDrafts) -> None:
        steady_np = self._steady_np[rows_np]
        self._steady_np[rows_np] = steady_np + seen.num_forwards
        self._acceptance.observe_share(rows_np, seen, self._sent_np[rows_np] * (steady_np >= 0))
        self._has_learned = True
        if seen.drafts_np.any():
            self._acceptance.observe(rows_np, seen)
        idle_np = self._best_np[rows_np] == 0
        if idle_np.any():
            self._charge(rows_np, idle_np, seen)
        if self._probes.are_any:
            is_over_np = (seen.tested_np > seen.accepted_np) | (self.padded and self._probes.are_empty)
            self._probes.stop(rows_np[self._probes.is_probing_np[rows_np] & is_over_np])
            self._is_awake = True

    def _charge(self, rows_np: np.ndarray, idle_np: np.ndarray, seen: VerifiedDrafts) -> None:
        """Counts what drafts of rows that should have none took, less what they brought."""
        n, m = len(rows_np), seen.num_forwards
        drafts = float(seen.drafts_np @ idle_np) / m
        is_width_paid = self.padded and self._probes.are_any and bool(idle_np.all())
        if drafts or is_width_paid:
            price = self._choice.price(n, drafts, self._cost.of(n).curve)
            self._probes.charge(m * price - float(seen.accepted_np @ idle_np) / n)
