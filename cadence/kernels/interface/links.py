"""How the stages of a model reach each other: each sends what it computed to the next, the last broadcasts its tokens.

What is sent arrives in order. Sending waits for no reader; receiving waits for what was sent.
"""

from __future__ import annotations

from typing import Protocol

import torch


class StageLinks(Protocol):
    stage: int
    count: int  # stages
    is_last: bool

    def send(self, x: torch.Tensor) -> None:
        """To the next stage."""
        ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """What the stage before sent next."""
        ...

    def broadcast(self, x: torch.Tensor) -> None:
        """By the last stage, to all before it."""
        ...

    def receive_broadcast(self, out: torch.Tensor) -> None:
        """What the last stage broadcast next, put into `out`, which is dense."""
        ...

    def arrived(self) -> float:
        """When what was received last had come, by time.monotonic; 0 = nothing was."""
        ...

    def check(self) -> None:
        """Raises CollectiveAbortedError; to be called before results are used."""
        ...


class OneStage:
    """There is no other to hand anything to."""

    stage, count, is_last = 0, 1, True

    def send(self, x: torch.Tensor) -> None:
        raise NotImplementedError

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise NotImplementedError

    def broadcast(self, x: torch.Tensor) -> None:
        """To none."""

    def receive_broadcast(self, out: torch.Tensor) -> None:
        raise NotImplementedError

    def arrived(self) -> float:
        return 0.0

    def check(self) -> None:
        """No other can be gone."""


ONE_STAGE = OneStage()
