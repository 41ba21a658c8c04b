"""Parameters of which some are always run, and the rest with `--wide`; and how many examples property tests have."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Families of models that differ in more than the numbers of a rotation: one group of layers, two over one pool,
# experts, learned positions and transposed matrices, norms after layers.
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


def each_once(*axes: Sequence[Any], turns: int = 0) -> list[Any]:
    """For `parametrize` of several names: every combination. Of them as many as the longest axis has are always run,
    in which each value of each axis occurs; the others are marked `wide`. turns: run so many instead, with the first
    values of each axis."""
    always = {tuple(turn % len(axis) for axis in axes) for turn in range(turns or max(map(len, axes)))}
    places = product(*(range(len(axis)) for axis in axes))
    rows = [(place, [axis[at] for axis, at in zip(axes, place, strict=True)]) for place in places]
    return [pytest.param(*row, marks=() if place in always else pytest.mark.wide) for place, row in rows]


def choose_examples(wide: bool) -> None:
    """The settings that property tests begin with: the same examples everywhere, however slow the machine is."""
    same = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("quick", same, max_examples=25)
    settings.register_profile("wide", same, max_examples=200)
    settings.load_profile("wide" if wide else "quick")


def examples(quick: int, wide: int, **others: Any) -> settings:
    """For property tests with numbers of examples of their own: `quick`, and `wide` with `--wide`."""
    return settings(max_examples=wide if settings.get_current_profile_name() == "wide" else quick, **others)
