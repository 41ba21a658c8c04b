"""Triton kernels in the tests: on the GPU where there is one, else in Triton's interpreter. Import before `triton`."""

from __future__ import annotations

import os
import sys

import torch

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
