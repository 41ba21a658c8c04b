"""Rows that decode with drafts that are right with a given probability, on a clock that only forwards move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cadence.scheduler.features.drafts.policy import DraftPolicy

Cost = Callable[[float, int], float]  # seconds of a forward by tokens and rows


def _linear(tokens: float, rows: int) -> float:
    return 1e-3 * tokens


def _cpu(tokens: float, rows: int) -> float:
    return 4e-3 + 1e-3 * tokens


def _jump(tokens: float, rows: int) -> float:
    return 1e-3 * rows if tokens <= rows else 1e-3 * (1.2 * rows + 0.3 * tokens)


def _flat(tokens: float, rows: int) -> float:
    return 1e-2 + 1e-5 * tokens


def _roofline(tokens: float, rows: int) -> float:
    return max(1e-2, 1e-4 * tokens) + 1e-5 * tokens


def _tiles(tokens: float, rows: int) -> float:
    return 1e-2 + 2e-3 * np.ceil(tokens / (3 * rows))


COSTS: dict[str, Cost] = {
    "linear": _linear,  # drafts never pay
    "cpu": _cpu,
    "jump": _jump,  # the first draft of a forward is dear, the others are cheap
    "flat": _flat,
    "roofline": _roofline,  # flat up to 100 tokens
    "tiles": _tiles,
}


@dataclass
class Plan:
    most_np: np.ndarray  # [n]
    width: int


@dataclass
class DraftWorld:
    """Each row has drafts in a share `offers` of its forwards, each right with probability `right_np`, which tests may
    change. Plans are chosen `depth - 1` plans before the results of those before them are told."""

    cost: Cost
    right_np: np.ndarray  # [n]
    most: int = 4
    num_forwards: int = 1
    depth: int = 1
    offers: float = 1.0
    padded: bool = False
    adaptive: bool = True
    noise: Callable[[np.random.Generator], float] = lambda rng: 1.0  # times what a plan takes
    seed: int = 0
    seconds: float = 0.0
    num_changes: int = 0
    widths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = len(self.right_np)
        self.rng = np.random.default_rng(self.seed)
        self.policy = DraftPolicy(self.most, n, self.adaptive, self.padded)
        self.rows_np = np.arange(n)
        self.most_np = np.array([self.policy.begin(row, self.most) for row in range(n)])
        self.tokens_np = np.zeros(n, np.int64)
        self.in_flight: deque[Plan] = deque()

    def run(self, num_tokens: int) -> float:
        """Until rows have so many more tokens on average -> tokens a second, of all rows."""
        before, since = self.tokens_np.sum(), self.seconds
        while self.tokens_np.sum() - before < num_tokens * len(self.rows_np):
            self.step()
        return float(self.tokens_np.sum() - before) / (self.seconds - since)

    def step(self) -> None:
        changes, width = self.policy.choose(self.rows_np)
        for row, most in changes:
            assert self.most_np[row] != most
            self.most_np[row] = most
        assert width == 1 + self.most_np.max()
        self.num_changes += len(changes)
        self.widths.append(width)
        self.in_flight.append(Plan(self.most_np.copy(), width))
        if len(self.in_flight) == self.depth:
            self._carry_out(self.in_flight.popleft())

    def _carry_out(self, plan: Plan) -> None:
        m, n = self.num_forwards, len(self.rows_np)
        drafts_np = plan.most_np * (self.rng.random((m, n)) < self.offers)
        wrong_np = self.rng.random((plan.width, m, n)) >= self.right_np
        wrong_np[-1] = True
        tokens_np = 1 + np.minimum(wrong_np.argmax(axis=0), drafts_np)
        computed_np = np.full(m, n * plan.width) if self.padded else n + drafts_np.sum(axis=1)
        seconds = sum(self.cost(float(tokens), n) for tokens in computed_np)
        self.seconds += seconds
        self.tokens_np += tokens_np.sum(axis=0)
        self.policy.observe(self.rows_np, drafts_np, tokens_np)
        self.policy.observe_time(n, m, float(computed_np.mean()), seconds * self.noise(self.rng))


def plain_speed(cost: Cost, num_rows: int) -> float:
    """Tokens a second without drafts."""
    return num_rows / cost(num_rows, num_rows)


def best_speed(cost: Cost, right: float, num_rows: int, most: int) -> float:
    """Tokens a second of the best number of drafts, if the drafts of all rows are right with this probability: with so
    many drafts in some of the rows, by looking at all."""
    speeds = []
    for k in range(most + 1):
        for more in range(num_rows):  # rows with one draft more than the others
            kept = sum(right**i for i in range(1, k + 1)) * num_rows + (right ** (k + 1) * more if k < most else 0)
            tokens = num_rows * (1 + k) + (more if k < most else 0)
            speeds.append((num_rows + kept) / cost(tokens, num_rows))
    return max(speeds)
