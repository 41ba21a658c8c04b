"""Matrices of 4 and 8 bits as the GPU's kernels read them, made of values or of blocks of a file.

eight bits  values [rows, cols] float8_e4m3fn or int8, scales [rows, groups] float32: value * scale
four bits   values [rows, cols / 2] uint8, scales and zeros [rows, groups] float32: (value - zero) * scale. Of every
            64 columns, the two bytes j of 16 have columns j, 16 + j, 32 + j and 48 + j, from the lowest bits up:
            masks and shifts of a word then give pairs of columns side by side. With a table: table[value] * scale
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cadence.kernels.reference.float8_rows import float8_of
from cadence.kernels.triton.lowbit.few_bits_table import NO_TABLE, CodeTable

SPAN = 64  # columns that 32 bytes of four-bit values hold
GROUP = 128  # columns with one scale, of what is quantised here
_MIDDLE = 8.0  # the zero of four-bit values without one of their own
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a group's range, among which the least error is looked for
_LEAST = 1e-12  # of a scale: rows of zeros stay so
BLOCK = 32  # columns of a file's block
_CHUNK = 1 << 24  # elements quantised at once


@dataclass(frozen=True, slots=True)
class Stored:
    """W [rows, cols]."""

    values: torch.Tensor  # [rows, cols], or [rows, cols / 2]
    scales: torch.Tensor  # [rows, groups]
    zeros: torch.Tensor  # [rows, groups]; [0] = none
    cols: int
    weight_only: bool = False  # activations are not rounded to eight bits, though kernels could multiply them so
    table: CodeTable = NO_TABLE  # of four bits, without zeros

    @property
    def rows(self) -> int:
        return self.values.shape[0]

    @property
    def is_four(self) -> bool:
        return self.values.dtype is torch.uint8

    @property
    def group(self) -> int:
        return self.cols // self.scales.shape[1]

    def to(self, device: torch.device) -> Stored:
        values, scales, zeros = (each.to(device).contiguous() for each in (self.values, self.scales, self.zeros))
        return replace(self, values=values, scales=scales, zeros=zeros, table=self.table.to(device))

    def by_groups(self) -> Stored:
        """With scales and zeros of a group side by side in memory: kernels read them by many rows at once."""
        scales, zeros = (each.t().contiguous().t() if len(each) else each for each in (self.scales, self.zeros))
        return replace(self, scales=scales, zeros=zeros)

    def regrouped(self, group: int) -> Stored:
        """With a scale for so many columns, which divide those that have one."""
        times = self.group // group
        scales, zeros = (each.repeat_interleave(times, 1) if len(each) else each for each in (self.scales, self.zeros))
        return replace(self, scales=scales, zeros=zeros) if times > 1 else self

    def rows_of(self, first: int, count: int) -> Stored:
        run = slice(first, first + count)
        return replace(self, values=self.values[run], scales=self.scales[run], zeros=self.zeros[run])

    def widened(self) -> torch.Tensor:
        """[rows, cols] float32"""
        if not self.is_four:
            return (self.values.float().view(self.rows, -1, self.group) * self.scales.unsqueeze(2)).view(self.rows, -1)
        pairs = self.values.view(torch.int16).view(self.rows, -1, 1, SPAN // 4)
        codes = torch.cat([pairs >> place & 15 for place in (0, 4, 8, 12)], dim=2).view(self.rows, -1, self.group)
        if self.table.exists:
            return (self.table.numbers[codes.int()] * self.scales.unsqueeze(2)).view(self.rows, -1)
        quants = codes.float()
        zeros = self.zeros.unsqueeze(2) if len(self.zeros) else _MIDDLE
        return ((quants - zeros) * self.scales.unsqueeze(2)).view(self.rows, -1)


def stacked(parts: list[Stored]) -> Stored:
    """One below the other; all of one kind, group and table."""
    first = parts[0]
    if len(parts) == 1:
        return first
    with_zeros = any(len(part.zeros) for part in parts)
    zeros = [part.zeros if len(part.zeros) else torch.full_like(part.scales, _MIDDLE) for part in parts]
    none = first.zeros[:0]
    return Stored(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(zeros) if with_zeros else none,
        first.cols,
        any(part.weight_only for part in parts),
        first.table,
    )


def as_fp8(values: torch.Tensor) -> Stored:
    """A scale for each row."""
    quants, scales = float8_of(values)
    return Stored(quants, scales, scales.new_zeros(0), values.shape[1])


def as_int8(values: torch.Tensor) -> Stored:
    scales = (values.abs().amax(dim=1, keepdim=True).float() / 127.0).clamp(min=_LEAST)
    return Stored((values.float() / scales).round().to(torch.int8), scales, scales.new_zeros(0), values.shape[1])


def as_int4(values: torch.Tensor) -> Stored:
    """A scale for each group of a row, of several the one with the least squared error."""
    rows, cols = values.shape
    step = max(1, _CHUNK // cols)
    parts = [_int4_rows(values[start : start + step].float()) for start in range(0, rows, step)]
    return stacked(parts)


def _int4_rows(values: torch.Tensor) -> Stored:
    rows, cols = values.shape
    groups = values.view(rows, -1, GROUP if cols % GROUP == 0 else SPAN)
    most = groups.abs().amax(dim=2, keepdim=True).clamp(min=_LEAST)
    best = torch.full_like(most, torch.inf)
    scales, quants = torch.zeros_like(most), torch.zeros_like(groups)
    for shrink in _SHRINKS:
        scale = most * (shrink / 7.0)
        tried = (groups / scale).round().clamp(-8, 7)
        error = ((tried * scale - groups) ** 2).sum(dim=2, keepdim=True)
        better = error < best
        best, scales = torch.where(better, error, best), torch.where(better, scale, scales)
        quants = torch.where(better, tried, quants)
    return Stored(in_halves(quants.view(rows, cols) + _MIDDLE), scales.squeeze(2), scales.new_zeros(0), cols)


def in_halves(quants: torch.Tensor) -> torch.Tensor:
    """[rows, cols] of 0..15 -> [rows, cols / 2] uint8"""
    rows = quants.shape[0]
    bytes4 = quants.to(torch.uint8).view(rows, -1, 2, 2, SPAN // 4)
    return (bytes4[:, :, :, 0] | bytes4[:, :, :, 1] << 4).transpose(2, 3).reshape(rows, -1)


def of_blocks(kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Stored | None:
    """blocks: [bytes] uint8 of a file -> the same numbers; None: a kind that no kernel reads"""
    if kind not in _HEADS or cols % SPAN:
        return None
    lines = blocks.view(rows, cols // BLOCK, -1)
    heads = _HEADS[kind]
    numbers, at = [], 0
    for dtype in heads:
        numbers.append(lines[..., at : at + dtype.itemsize].contiguous().view(dtype).squeeze(2).float())
        at += dtype.itemsize
    quants = lines[..., at:]
    scales, none = numbers[0], numbers[0].new_zeros(0)
    if kind.startswith("Q8"):
        numbers = quants.contiguous().view(torch.int8).view(rows, cols)
        return _regrouped(Stored(numbers, scales, none, cols, weight_only=True))
    halves = torch.cat([quants & 15, quants >> 4], dim=2).view(rows, cols)
    zeros = none
    if kind == "Q4_Z":
        zeros = numbers[1]
    elif kind == "Q4_1":  # quant * scale + least
        if bool(((scales == 0) & (numbers[1] != 0)).any()):
            return None
        zeros = torch.where(scales == 0, 0.0, -numbers[1] / scales)
    return _regrouped(Stored(in_halves(halves), scales, zeros, cols))


# What is in front of each block, by kind: scales, then zeros or least values.
_HEADS = {
    "Q4_0": (torch.float16,),
    "Q4_1": (torch.float16, torch.float16),
    "Q4_Z": (torch.float16, torch.float16),
    "Q8_0": (torch.float16,),
    "Q8_F": (torch.float32,),
}


def _regrouped(stored: Stored) -> Stored:
    """With fewer scales, where blocks side by side have the same."""
    for blocks in (stored.cols // BLOCK, GROUP // BLOCK, SPAN // BLOCK):
        if stored.scales.shape[1] % blocks:
            continue
        found = [each.view(stored.rows, -1, blocks) for each in (stored.scales, stored.zeros) if len(each)]
        if all(torch.equal(each, each[..., :1].expand_as(each)) for each in found):
            firsts = [each[..., 0].contiguous() for each in found]
            return replace(stored, scales=firsts[0], zeros=firsts[1] if len(firsts) > 1 else stored.zeros)
    return stored
