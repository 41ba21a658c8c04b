"""Products of tiles in Triton's interpreter have the bits of an element by what goes into it alone, as on a GPU.

The interpreter leaves them to numpy's BLAS, which on processors with AVX2 sums a row of a tile in another order than
the row below it. Here sums are float64 and rounded once: orders of summation differ by less than a rounding.
"""

from __future__ import annotations

import sys
from typing import Any


def widen_interpreted_dots() -> None:
    """Where the interpreter is not loaded, nothing happens."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        return
    builder, handle, float64 = interpreter.InterpreterBuilder, interpreter.TensorHandle, interpreter.tl.float64
    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        kind = d.data.dtype
        if kind.kind != "f":
            return dot(self, a, b, d, *options)
        wide = dot(self, a, b, handle(d.data.astype("float64"), float64), *options)
        return handle(wide.data.astype(kind), d.dtype.scalar)

    builder.create_dot = create_dot
