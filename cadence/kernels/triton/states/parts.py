"""What kernels of states share: runs by place, inputs of tokens, functions that keep their precision."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.triton.common.private import is_interpreted


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
def find_run(start_ptr, slot, first_run, num_runs, first_token, SPAN, SPARE: tl.constexpr):
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
def part_of(begin, end, replayed, certain, most_tokens):
    """Of a run's walk -> (the token it begins with, kept inputs before that, whether the state is stored). Of a run of
    more than most_tokens drafts alone are walked through: its state has what is certain."""
    is_long = end - begin > most_tokens
    first = tl.where(is_long, tl.where(certain > 0, begin + certain, end), begin)
    return first, tl.where(is_long, 0, replayed), (certain > 0) & (end - begin <= most_tokens)


@triton.jit
def certain_tokens(start_ptr, certain_ptr, run, most_tokens):
    """-> (first token of a run, how many of it are taken in chunks, whether its state is stored): none of a run of up
    to most_tokens, all of one whose row stays as it is"""
    begin, certain = tl.load(start_ptr + run), tl.load(certain_ptr + run)
    length = tl.load(start_ptr + run + 1) - begin
    return begin.to(tl.int64), tl.where(length > most_tokens, tl.where(certain > 0, certain, length), 0), certain > 0


@triton.jit
def lines(at, inside, EVEN: tl.constexpr):
    """As they are stored; 0 where it is not inside. EVEN: all is inside."""
    if EVEN:
        return tl.load(at)
    return tl.load(at, mask=inside, other=0.0)


# Entries of a product's side from which on bfloat16 is multiplied as it is: with 32, Triton 3.6 was seen to read beyond
# tiles on an H200, or to give other numbers.
_LEAST_BFLOAT16 = 64


def factors_of(dtype: torch.dtype, narrowest: int) -> dict[str, object]:
    """KIND of numbers that are multiplied on matrix units, for activations of this type, and their PRECISION. States
    may be too large for float16; the interpreter takes bfloat16 for whole numbers. narrowest: side of any product"""
    if dtype is torch.bfloat16 and narrowest >= _LEAST_BFLOAT16 and not is_interpreted():
        return {"KIND": tl.bfloat16, "PRECISION": "tf32"}
    return {"KIND": tl.float32, "PRECISION": "tf32x3" if dtype is torch.float32 else "tf32"}
