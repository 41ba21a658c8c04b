"""How often drafts are right, by row, and how often there are any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MEMORY = 24  # tested drafts that an estimate remembers ...
_PRIOR_MEMORY = 128  # ... and that of the engine
_PRIOR = 0.5  # before anything was tested
_PRIOR_WEIGHT = 2.0  # a row begins as if so many drafts had been tested
_EARLY = 8  # tested drafts of a request by which the engine's estimate is made
_FORWARDS = 32.0  # forwards that the share of drafts remembers
_LEAST, _MOST = 0.001, 0.995  # of an estimate


@dataclass(frozen=True, slots=True)
class VerifiedDrafts:
    """What some forwards showed of each row's drafts: sums over the forwards."""

    num_forwards: int
    forwards_np: np.ndarray  # [s] in which the row had not ended
    drafts_np: np.ndarray  # [s] that were verified
    tested_np: np.ndarray  # [s] up to and including the first that was wrong; those after it say nothing
    accepted_np: np.ndarray  # [s] that were right

    @staticmethod
    def of(drafts_np: np.ndarray, tokens_np: np.ndarray) -> VerifiedDrafts:
        """Both [m, s]: drafts verified in each forward, tokens that came of it (0: the row had ended)."""
        runs_np = tokens_np > 0
        drafts_np = drafts_np * runs_np
        accepted_np = np.maximum(np.minimum(tokens_np - 1, drafts_np), 0)
        tested_np = np.minimum(accepted_np + 1, drafts_np)
        m, s = drafts_np.shape
        counts_np = np.concatenate((runs_np, drafts_np, tested_np, accepted_np), axis=1).sum(axis=0)
        return VerifiedDrafts(m, counts_np[:s], counts_np[s : 2 * s], counts_np[2 * s : 3 * s], counts_np[3 * s :])


class Acceptance:
    """Moving averages. A row begins with what other requests showed in their first drafts: so a request counts for as
    much, whether or not it went on to draft."""

    def __init__(self, num_rows: int) -> None:
        self.probability_np = np.full(num_rows, _PRIOR)  # that a draft is right if those before it are
        self.share_np = np.full(num_rows, _MOST)  # of the drafts that a row may have, those that it has
        self.prior = _PRIOR  # probability of a row that begins ...
        self._prior_share = _MOST  # ... and its share
        self._prior_weight = _PRIOR_WEIGHT
        self._weight_np = np.full(num_rows, _PRIOR_WEIGHT)  # tested drafts in the probability, up to the memory's
        self._forwards_np = np.ones(num_rows)  # in the share
        self._tested_np = np.zeros(num_rows, np.int64)  # drafts, since the row began

    def begin(self, row: int) -> None:
        self.probability_np[row] = self.prior
        self.share_np[row] = self._prior_share
        self._weight_np[row] = _PRIOR_WEIGHT
        self._forwards_np[row] = 1.0
        self._tested_np[row] = 0

    def doubt(self, rows_np: np.ndarray) -> None:
        """What is tested next weighs as much as what was."""
        self._weight_np[rows_np] = 1.0

    def is_settled(self, rows_np: np.ndarray) -> np.ndarray:
        """[s] bool: as much was tested as is remembered."""
        settled_np: np.ndarray = self._weight_np[rows_np] >= _MEMORY
        return settled_np

    def observe(self, rows_np: np.ndarray, seen: VerifiedDrafts) -> None:
        weight_np = self._weight_np[rows_np]
        new_np = weight_np + seen.tested_np
        probability_np = (self.probability_np[rows_np] * weight_np + seen.accepted_np) / new_np
        self.probability_np[rows_np] = np.minimum(np.maximum(probability_np, _LEAST), _MOST)
        self._weight_np[rows_np] = np.minimum(new_np, _MEMORY)
        self._observe_prior(rows_np, seen)

    def observe_share(self, rows_np: np.ndarray, seen: VerifiedDrafts, room_np: np.ndarray) -> None:
        """`room_np` [s]: most drafts that a row might have had in each of the forwards; 0 says nothing."""
        told_np = room_np > 0
        weight_np = told_np * seen.forwards_np
        old_np, known_np = self.share_np[rows_np], self._forwards_np[rows_np]
        had_np = seen.drafts_np / np.maximum(room_np, 1)  # forwards with all drafts
        new_np = (old_np * known_np + had_np * told_np) / (known_np + weight_np)
        self.share_np[rows_np] = new_np = np.minimum(np.maximum(new_np, _LEAST), _MOST)
        self._forwards_np[rows_np] = np.minimum(known_np + weight_np, _FORWARDS)
        told = float(weight_np.sum())
        if told:
            self._prior_share += (float(new_np @ weight_np) / told - self._prior_share) * told / (told + _PRIOR_MEMORY)

    def _observe_prior(self, rows_np: np.ndarray, seen: VerifiedDrafts) -> None:
        early_np = self._tested_np[rows_np] < _EARLY
        self._tested_np[rows_np] += seen.tested_np
        tested, accepted = int(seen.tested_np @ early_np), int(seen.accepted_np @ early_np)
        if tested:
            new = self._prior_weight + tested
            self.prior = min(max((self.prior * self._prior_weight + accepted) / new, _LEAST), _MOST)
            self._prior_weight = min(new, _PRIOR_MEMORY)
