"""The drafts with which a forward is expected to bring the most tokens a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cadence.scheduler.features.drafts.cost import CostCurve

_BINS = 64  # of probabilities: drafts in the same one are taken together or not at all


@dataclass(frozen=True, slots=True)
class Prospects:
    """What drafts would bring. A row has all the drafts that it may have, or none: with probability `shares_np`."""

    kept_np: np.ndarray  # [k, n] probability that a row's first, second, ... draft is right; 0 beyond its most
    shares_np: np.ndarray  # [n]
    current_np: np.ndarray  # [n] drafts as they are now

    @staticmethod
    def of(probability_np: np.ndarray, shares_np: np.ndarray, most_np: np.ndarray, current_np: np.ndarray) -> Prospects:
        """[n] each: probability that a draft is right if those before it are, share, most drafts, drafts now."""
        steps_np = (np.arange(int(most_np.max()))[:, None] < most_np) * probability_np
        return Prospects(np.multiply.accumulate(steps_np, axis=0), shares_np, current_np)

    def current_kept(self) -> float:
        """Drafts of all rows that are right in a forward, if they stay as they are now."""
        has_np = np.arange(len(self.kept_np))[:, None] < self.current_np
        return float(((self.kept_np * has_np) @ self.shares_np).sum())


@dataclass(frozen=True, slots=True)
class BestDrafts:
    drafts_np: np.ndarray  # [n] of each row, the best
    speed: float  # tokens a second with them, as a multiple of that without drafts
    current: float  # the same of the current ones


class DraftChoice(Protocol):
    """Knows what a forward computes."""

    def best(self, prospects: Prospects, curve: CostCurve, num_forwards: int) -> BestDrafts:
        """Of a plan of so many forwards, over which the curve averages, and within what it lets try."""
        ...

    def price(self, num_rows: int, num_drafts: float, curve: CostCurve) -> float:
        """By what share of itself a forward gets longer by these drafts, of rows that had none."""
        ...


class RaggedChoice:
    """A forward computes the drafts there are. A draft is worth its probability, whatever row it is of: the best
    choice is all drafts above some probability, and every such choice is looked at."""

    def best(self, prospects: Prospects, curve: CostCurve, num_forwards: int) -> BestDrafts:
        kept_np, shares_np = prospects.kept_np[: curve.most_drafts], prospects.shares_np
        n = len(shares_np)
        bins_np = (kept_np * _BINS).astype(np.intp)
        flat_np = bins_np.ravel()
        has_np = (bins_np > 0) * shares_np  # [k, n] probability that there is such a draft
        # [choices]: drafts, and those that are right, of all above a probability; the last is the current choice
        drafts_np, right_np = np.empty(_BINS), np.empty(_BINS)
        np.bincount(flat_np, has_np.ravel(), _BINS)[:0:-1].cumsum(out=drafts_np[:-1])
        np.bincount(flat_np, (kept_np * has_np).ravel(), _BINS)[:0:-1].cumsum(out=right_np[:-1])
        drafts_np[-1] = prospects.current_np @ shares_np
        right_np[-1] = prospects.current_kept()
        # A plan has no drafts at all, or on average so many more: exact for one row and forward.
        some = 1 - float(np.multiply.reduce(1 - shares_np)) ** num_forwards
        x_np = 1 + drafts_np / (some * n)
        speeds_np = (1 + right_np / n) / (1 - some + some * np.interp(x_np, curve.x_np, curve.cost_np))
        chosen = int(speeds_np[:-1].argmax())
        drafts_np = (bins_np >= _BINS - 1 - chosen).sum(axis=0)
        return BestDrafts(drafts_np, float(speeds_np[chosen]), float(speeds_np[-1]))

    def price(self, num_rows: int, num_drafts: float, curve: CostCurve) -> float:
        return curve.cost(1 + num_drafts / num_rows) - 1


class PaddedChoice:
    """A forward computes as many tokens for each row as for the one with the most drafts, so all may have as many."""

    def best(self, prospects: Prospects, curve: CostCurve, num_forwards: int) -> BestDrafts:
        n = len(prospects.shares_np)
        right_np = (prospects.kept_np[: curve.most_drafts] @ prospects.shares_np).cumsum()  # [k] of 1, 2, ... drafts
        x_np = np.arange(2.0, 2.0 + len(right_np))
        speeds_np = (1 + right_np / n) / np.interp(x_np, curve.x_np, curve.cost_np)
        chosen = int(speeds_np.argmax())
        current = (1 + prospects.current_kept() / n) / curve.cost(1 + int(prospects.current_np.max()))
        return BestDrafts((prospects.kept_np[: chosen + 1] > 0).sum(axis=0), float(speeds_np[chosen]), current)

    def price(self, num_rows: int, num_drafts: float, curve: CostCurve) -> float:
        return curve.cost(2.0) - 1
