"""What prompt tokens cost, by what earlier steps took."""

from __future__ import annotations

import math

_KEPT = 0.98  # weight of past measurements when one is added
_PAIR = 3e-4  # cost of a pair as a share of a token's, until measurements tell
_SWEEPS = 8  # of the solver per measurement


class PromptCost:
    """Seconds = fixed + per_token x tokens + per_pair x pairs, where a pair is a token and one it attends to.

    Fitted by least squares of *relative* errors, so a launch that took a hundred times as long (it compiled something)
    hardly counts. The solver goes a few sweeps over the terms, none of which becomes negative, from the last solution:
    it soon follows what measurements tell, and stays where it was in what they leave open.
    """

    def __init__(self) -> None:
        self._terms = [0.0, 0.0, 0.0]  # seconds: per token, per pair, fixed
        self._products = [[0.0] * 3 for _ in range(3)]  # [term][term] sums over measurements
        self._targets = [0.0] * 3  # [term] sums over measurements

    @property
    def is_known(self) -> bool:
        return self._targets[0] > 0

    def seconds(self, tokens: float, pairs: float) -> float:
        per_token, per_pair, fixed = self._terms
        return fixed + per_token * tokens + per_pair * pairs

    @property
    def fixed(self) -> float:
        """Seconds that prompts add to a step however few tokens they have."""
        return self._terms[2]

    def tokens_within(self, seconds: float, context: int) -> int:
        """Most tokens after `context` earlier ones that take at most `seconds`, beside what is fixed."""
        if seconds <= 0 or not self.is_known:
            return 0
        per_token, per_pair, _ = self._terms
        linear = per_token + per_pair * context
        return int(2 * seconds / max(linear + math.sqrt(linear * linear + 2 * per_pair * seconds), 1e-12))

    def observe(self, tokens: float, pairs: float, seconds: float, rest: float) -> None:
        """A step of `seconds`, in which all but the prompts takes `rest`, computed these."""
        parts = (tokens / seconds, pairs / seconds, 1 / seconds)
        share = max(1 - rest / seconds, 0.0)
        if not self.is_known:
            per_token = share / (parts[0] + _PAIR * parts[1])
            self._terms = [per_token, _PAIR * per_token, 0.0]
        for row, part in enumerate(parts):
            self._targets[row] = self._targets[row] * _KEPT + part * share
            self._products[row] = [
                product * _KEPT + part * other for product, other in zip(self._products[row], parts, strict=True)
            ]
        for _ in range(_SWEEPS):
            self._sweep()

    def rescale(self, factor: float) -> None:
        """All that was measured would now take `factor` times as long."""
        self._terms = [term * factor for term in self._terms]
        self._targets = [target / factor for target in self._targets]
        self._products = [[product / factor**2 for product in products] for products in self._products]

    def _sweep(self) -> None:
        """Sets each term to what is best beside the others."""
        terms = self._terms
        for row, products in enumerate(self._products):
            others = sum(products[other] * terms[other] for other in range(3) if other != row)
            terms[row] = max((self._targets[row] - others) / products[row], 0.0)
