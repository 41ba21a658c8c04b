"""How the stages of a model reach each other: each hands what it computed to the next, the last tells what it chose.

What is sent arrives in order. Nobody waits for who reads; who reads waits for what it needs.
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

    def tell(self, x: torch.Tensor) -> None:
        """By the last stage, to all before it."""
        ...

    def hear(self, out: torch.Tensor) -> None:
        """What the last stage told next, put into `out`, which is dense."""
        ...

    def arrived(self) -> float:
        """When what was received last had come, by time.monotonic; 0 = nothing was."""
        ...

    def check(self) -> None:
        """Raises CollectiveAbortedError; to be called before results are used."""
        ...


class OneStage:
    """Nobody to hand anything to."""

    stage, count, is_last = 0, 1, True

    def send(self, x: torch.Tensor) -> None:
        raise NotImplementedError

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise NotImplementedError

    def tell(self, x: torch.Tensor) -> None:
        """Nobody hears."""

    def hear(self, out: torch.Tensor) -> None:
        raise NotImplementedError

    def arrived(self) -> float:
        return 0.0

    def check(self) -> None:
        """Nobody can be gone."""


ONE_STAGE = OneStage()
