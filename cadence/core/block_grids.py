"""The grids of GGUF's IQ types: every entry is what an index in a block stands for, of a few values side by side.

The numbers are the format's (llama.cpp, ggml-common.h); `block_grids.bin` has them one after another, a byte each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

_FILE = Path(__file__).with_name("block_grids.bin")
_SHAPES = {
    "IQ2_XXS": (256, 8),
    "IQ2_XS": (512, 8),
    "IQ2_S": (1024, 8),
    "IQ3_XXS": (256, 4),
    "IQ3_S": (512, 4),
    "IQ1_S": (2048, 8),
}
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # of four bits
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # of four bits (E2M1), times two


def block_grid(kind: str) -> npt.NDArray[np.int8]:
    """Of a type by its name -> [entries, values]. IQ1_M has that of IQ1_S."""
    wanted = "IQ1_S" if kind == "IQ1_M" else kind
    start = 0
    for name, (entries, values) in _SHAPES.items():
        if name == wanted:
            return np.fromfile(_FILE, np.int8, entries * values, offset=start).reshape(entries, values)
        start += entries * values
    raise KeyError(kind)
