"""Asking for memory ahead of its use."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fetch(at, BYTES: tl.constexpr):
    """Asks for BYTES, a multiple of 16, from each of these addresses to be in the L2 cache soon.

    `at` has one address per thread of the program, or whole multiples: with fewer, threads would ask for the same.
    What is written there meanwhile is not missed: writes go to the L2 cache.
    """
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }", "=r,l,r",
        [at.to(tl.int64), tl.full(at.shape, BYTES, tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
