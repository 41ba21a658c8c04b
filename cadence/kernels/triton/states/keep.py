"""Keeps the inputs of drafts, once the walk has read those that were kept before: a launch of its own, since programs
of a row share some of them."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.state_ops import StateRuns, StateTable
from cadence.kernels.triton.common.launch import quick

_BLOCK = 1024


@triton.jit
def _copy(to, ptr, token, token_stride, head_stride, place, HEADS: tl.constexpr, SIZE: tl.constexpr):
    inside = (place >= 0) & (place < HEADS * SIZE)
    at = token * token_stride + place // SIZE * head_stride + place % SIZE
    tl.store(to, tl.load(ptr + at, mask=inside).to(to.dtype.element_ty), mask=inside)


@quick
@triton.jit(do_not_specialize=["first_run"])
def _keep(
    kept_ptr, p_ptr, q_ptr, r_ptr, s_ptr, rows_ptr, start_ptr, certain_ptr, count_ptr, first_run, kept_row, kept_line,
    p_token, p_head, q_token, q_head, r_token, r_head, s_token, s_head,
    P_HEADS: tl.constexpr, P_SIZE: tl.constexpr, Q_HEADS: tl.constexpr, Q_SIZE: tl.constexpr,
    R_HEADS: tl.constexpr, R_SIZE: tl.constexpr, S_HEADS: tl.constexpr, S_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program per run, draft and piece of what is kept: parts p, q, r and s, one after another."""
    run, line = first_run + tl.program_id(2), tl.program_id(1)
    if line >= tl.load(count_ptr + run):
        return
    token = (tl.load(start_ptr + run) + tl.load(certain_ptr + run) + line).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = kept_ptr + tl.load(rows_ptr + run).to(tl.int64) * kept_row + line * kept_line + place
    _copy(to, p_ptr, token, p_token, p_head, place, P_HEADS, P_SIZE)
    place -= P_HEADS * P_SIZE
    _copy(to, q_ptr, token, q_token, q_head, place, Q_HEADS, Q_SIZE)
    place -= Q_HEADS * Q_SIZE
    _copy(to, r_ptr, token, r_token, r_head, place, R_HEADS, R_SIZE)
    if S_HEADS > 0:
        place -= R_HEADS * R_SIZE
        _copy(to, s_ptr, token, s_token, s_head, place, S_HEADS, S_SIZE)


def keep_inputs(parts: tuple[torch.Tensor, ...], table: StateTable, runs: StateRuns) -> None:
    """parts: three or four [T, heads, size] or [T, size], each dense in its last dimension."""
    single, num_runs = runs.num_single, runs.rows.shape[0]
    most, width = table.kept.shape[1:]
    most = min(most, runs.max_query_len - 1)  # the first token of a run is certain
    if single == num_runs or most <= 0:
        return
    wide = [part if part.dim() == 3 else part[:, None] for part in parts]
    wide += [wide[0][:, :0]] * (4 - len(wide))
    strides = [stride for part in wide for stride in part.stride()[:2]]
    sizes = {f"{name}_HEADS": part.shape[1] for name, part in zip("PQRS", wide, strict=True)}
    sizes |= {f"{name}_SIZE": part.shape[2] for name, part in zip("PQRS", wide, strict=True)}
    names = sorted(sizes, key=lambda name: ("PQRS".index(name[0]), name))
    _keep[(triton.cdiv(width, _BLOCK), most, num_runs - single)](
        table.kept, *wide, runs.rows, runs.query_start, runs.certain, runs.kept, single,
        table.kept.stride(0), table.kept.stride(1), *strides,
        **{name: sizes[name] for name in names}, BLOCK=_BLOCK,
    )  # fmt: skip
