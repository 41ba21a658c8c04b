"""What kernels of states share: runs by place, inputs of tokens, functions that keep their precision."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + exp(x)), float32, near enough to torch's also where it is small."""
    grown = tl.exp(tl.minimum(x, 20.0))
    near_zero = grown * (1.0 - grown * (0.5 - grown * (0.33333333 - grown * 0.25)))
    return tl.where(x > 20.0, x, tl.where(grown < 0.03, near_zero, tl.log(1.0 + grown)))


@triton.jit
def read(at, inside, EVEN: tl.constexpr):
    """float32; 0 where it is not inside. EVEN: all is inside."""
    if EVEN:
        return tl.load(at).to(tl.float32)
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def write(at, value, inside, EVEN: tl.constexpr):
    if EVEN:
        tl.store(at, value.to(at.dtype.element_ty))
    else:
        tl.store(at, value.to(at.dtype.element_ty), mask=inside)


@triton.jit
def find_run(start_ptr, slot, first_run, num_runs, first_token, SPAN: tl.constexpr, SPARE: tl.constexpr):
    """The run that owns a slot, and the slot's number among the run's: runs from first_run on, the first of whose
    tokens is first_token, own a slot for each SPAN tokens and SPARE more, enough for parts that are not full."""
    owned = 0
    for base in range(0, num_runs, 128):
        run = base + tl.arange(0, 128)
        begin = tl.load(start_ptr + first_run + run, mask=run < num_runs, other=0)
        begun = ((begin - first_token) // SPAN + run * SPARE <= slot) & (run < num_runs)
        owned += tl.sum(begun.to(tl.int32), 0)
    run = owned - 1
    begin = tl.load(start_ptr + first_run + run)
    return first_run + run, slot - (begin - first_token) // SPAN - run * SPARE


@triton.jit
def of_length_1(x):
    """x [N] float32"""
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 0) + 1e-6))
