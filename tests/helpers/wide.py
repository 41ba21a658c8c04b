"""Parameters of which some are always run, and the rest with `--wide`."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# Families of models that differ in more than the numbers of a rotation: one group of layers, two over one pool,
# experts, learned positions and transposed matrices, norms behind.
DIFFERENT = ("llama", "gemma2", "qwen3_moe_mixed", "gpt2", "opt_postnorm")

# What strikes a process. One that is stopped is noticed by its silence, which takes a while.
KILLED_AND_STOPPED = [
    pytest.param(signal.SIGKILL, id="killed"),
    pytest.param(signal.SIGSTOP, marks=pytest.mark.wide, id="stopped"),
]


def mostly_wide(values: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """For `parametrize`: all `values`, those that are not among `always` marked `wide`."""
    return [value if value in always else pytest.param(value, marks=pytest.mark.wide) for value in values]


def mostly_wide_rows(rows: Iterable[tuple[Any, ...]], always: Collection[tuple[Any, ...]]) -> list[Any]:
    """The same, of parameters that go together."""
    return [row if row in always else pytest.param(*row, marks=pytest.mark.wide) for row in rows]
