"""Counts of drafts: how many were verified, how many were kept, position by position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

# One forward of one request: (drafts verified, tokens that came). One of the tokens is the forward's own; at an end it
# may be missing, and then the last draft that was kept counts as it.
Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Sums over forwards. Entry i of the tuples counts the drafts that stood i places after a row's newest token."""

    num_forwards: int = 0  # that verified drafts; of several rows each counts
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()  # as long as the other

    @property
    def num_drafted(self) -> int:
        return sum(self.drafted_by_position)

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafts that were kept; 0.0 where there were none."""
        return self.num_accepted / max(self.num_drafted, 1)

    @property
    def mean_length(self) -> float:
        """Tokens per forward that verified drafts, its own among them; 1.0 where none did."""
        return 1 + self.num_accepted / max(self.num_forwards, 1)

    def add(self, runs: Iterable[Run]) -> DraftStats:
        """These and the forwards of `runs`; those without drafts are not counted."""
        with_drafts = [(run[0], num_kept(run)) for run in runs if run[0]]
        if not with_drafts:
            return self
        width = max(len(self.drafted_by_position), *(drafts for drafts, _ in with_drafts))
        drafted, accepted = [0] * width, [0] * width
        for drafts, kept in with_drafts:
            for position in range(drafts):
                drafted[position] += 1
                accepted[position] += position < kept
        return self.plus(DraftStats(len(with_drafts), tuple(drafted), tuple(accepted)))

    def plus(self, other: DraftStats) -> DraftStats:
        return DraftStats(
            self.num_forwards + other.num_forwards,
            _sums(self.drafted_by_position, other.drafted_by_position),
            _sums(self.accepted_by_position, other.accepted_by_position),
        )


NO_DRAFTS = DraftStats()


def num_kept(run: Run) -> int:
    drafts, came = run
    return min(max(came - 1, 0), drafts)


def first_runs(runs: Iterable[Run], num_tokens: int) -> list[Run]:
    """What is left of forwards when only the first `num_tokens` that they brought stand. Of a forward that this cuts
    short, only drafts are left."""
    left: list[Run] = []
    for drafts, came in runs:
        if num_tokens <= 0:
            break
        left.append((drafts, min(came, num_tokens + 1)))
        num_tokens -= came
    return left


def kept_places(runs: Iterable[Run]) -> list[int]:
    """Which of the tokens that these forwards brought, counted from 0, were drafts."""
    places: list[int] = []
    first = 0
    for run in runs:
        places += range(first, first + num_kept(run))
        first += run[1]
    return places


def _sums(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))
