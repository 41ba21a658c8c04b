"""Triton kernels in the tests: on the GPU where there is one, else in Triton's interpreter. Import before `triton`.

The interpreter takes a hundred times as long: there, `make test` runs one case of every path through a kernel, in a
small shape, and `make wide` the rest. On a GPU all of them are run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import torch

from tests.helpers.wide import each_once, examples, mostly_wide, mostly_wide_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _enter_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1" and "triton" in sys.modules:
        raise RuntimeError("triton was imported before the interpreter could be chosen")
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_for_numpy(tensor: type, scope: object) -> None:
        # The interpreter holds scalars as arrays of one element, which numpy >= 2.4 no longer turns into ints.
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # type: ignore[attr-defined]

    interpreter._patch_lang_tensor = patch_for_numpy


if DEVICE == "cpu":
    _enter_interpreter()


def interpret(values: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """For `parametrize`: all `values`; in the interpreter those that are not among `always` are marked `wide`."""
    return mostly_wide(values, always) if DEVICE == "cpu" else list(values)


def interpret_rows(rows: Iterable[tuple[Any, ...]], always: Collection[tuple[Any, ...]]) -> list[Any]:
    """The same, of parameters that go together."""
    return mostly_wide_rows(rows, always) if DEVICE == "cpu" else list(rows)


def interpret_each_once(*axes: Sequence[Any]) -> list[Any]:
    """For `parametrize` of several names: every combination; in the interpreter `each_once` of them."""
    return each_once(*axes) if DEVICE == "cpu" else list(product(*axes))


def interpreted_examples(quick: int, wide: int) -> Any:
    """Settings of a property test: `quick` examples in the interpreter, `wide` with `--wide` and on a GPU."""
    return examples(quick if DEVICE == "cpu" else wide, wide)
