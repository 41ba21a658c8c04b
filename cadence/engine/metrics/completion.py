"""What is measured of one completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cadence.core.contract.request import FinishReason
from cadence.core.outputs import RequestMetrics


class Completion(Protocol):
    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def token_gap(self) -> float:
        """Seconds between the newest tokens and those before."""
        ...

    @property
    def tenant(self) -> str: ...

    @property
    def metrics(self) -> RequestMetrics: ...

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def engine(self) -> int:
        """Which of several gave its newest tokens."""
        ...

    @property
    def max_tokens(self) -> int | None: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...

    @property
    def is_pooled(self) -> bool:
        """Whether it ended with values in place of tokens."""
        ...
