"""What prompt tokens cost, by what earlier steps took."""

from __future__ import annotations

import math

_KEPT = 0.98  # weight of past measurements when one is added
_PAIR = 3e-4  # cost of a pair as a share of a token's, until measurements tell
_TELLING = 0.02  # least share of independent variation for which two terms are told apart


class PromptCost:
    """Seconds = per_token x tokens + per_pair x pairs, where a pair is a token and one it attends to.

    Fitted by least squares of *relative* errors, so a launch that took a hundred times as long (it compiled something)
    hardly counts. Where all measurements have about as many pairs per token, only the sum of both terms is fitted.
    """

    def __init__(self) -> None:
        self.per_token = 0.0  # seconds
        self.per_pair = 0.0  # seconds
        self._tt = self._tp = self._pp = self._ty = self._py = 0.0  # sums of products: tokens, pairs, share of the time

    @property
    def is_known(self) -> bool:
        return self._tt > 0

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.per_token * tokens + self.per_pair * pairs

    def tokens_within(self, seconds: float, context: int) -> int:
        """Most tokens after `context` earlier ones that take at most `seconds`."""
        if seconds <= 0 or not self.is_known:
            return 0
        linear, half = self.per_token + self.per_pair * context, self.per_pair / 2
        return int(2 * seconds / max(linear + math.sqrt(linear * linear + 4 * half * seconds), 1e-12))

    def observe(self, tokens: float, pairs: float, seconds: float, rest: float) -> None:
        """A step of `seconds`, in which all but the prompts takes `rest`, computed these."""
        token, pair, share = tokens / seconds, pairs / seconds, max(1 - rest / seconds, 0.0)
        self._tt = self._tt * _KEPT + token * token
        self._tp = self._tp * _KEPT + token * pair
        self._pp = self._pp * _KEPT + pair * pair
        self._ty = self._ty * _KEPT + token * share
        self._py = self._py * _KEPT + pair * share
        self._solve()

    def _solve(self) -> None:
        determinant = self._tt * self._pp - self._tp * self._tp
        if determinant < _TELLING * self._tt * self._pp:
            self._scale()
            return
        per_token = (self._ty * self._pp - self._py * self._tp) / determinant
        per_pair = (self._py * self._tt - self._ty * self._tp) / determinant
        if per_pair < 0:
            per_token, per_pair = self._ty / self._tt, 0.0
        elif per_token < 0:
            per_token, per_pair = 0.0, self._py / self._pp
        self.per_token, self.per_pair = per_token, per_pair

    def _scale(self) -> None:
        """Fits both terms together, their ratio as it was."""
        ratio = self.per_pair / self.per_token if self.per_token else _PAIR
        squares = self._tt + 2 * ratio * self._tp + ratio * ratio * self._pp
        self.per_token = (self._ty + ratio * self._py) / squares
        self.per_pair = ratio * self.per_token
