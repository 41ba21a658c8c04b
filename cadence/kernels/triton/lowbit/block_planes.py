"""Blocks of a GGUF file as the GPU's kernels read them: of every field a plane.

A file has all fields of a block side by side, at addresses that suit no vector load. Here a field of all blocks of a
row lies in one run. Types without grids are arranged anew before (`span_planes`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.core.block_grids import block_grid
from cadence.kernels.triton.lowbit.span_planes import ARRANGED, in_fours

Field = tuple[int, int, torch.dtype]  # first byte in a block, byte after the last, type its numbers are read in

_U8, _I8, _I16, _I32 = torch.uint8, torch.int8, torch.int16, torch.int32
_F16, _F32 = torch.float16, torch.float32


@dataclass(frozen=True, slots=True)
class BlockForm:
    """How a type is laid out here."""

    block: int  # columns
    group: int  # columns with one scale
    num_bytes: int  # of a block
    fields: tuple[Field, ...]  # as the decoders of `block_decoders` have them
    shifts: bool = False  # whether something is subtracted from a group beside being scaled


FORMS: dict[str, BlockForm] = {
    "Q8_0": BlockForm(64, 32, 68, ((0, 64, _I8), (64, 68, _F16))),
    "Q5_0": BlockForm(64, 32, 44, ((0, 32, _U8), (32, 40, _U8), (40, 44, _F16))),
    "Q5_1": BlockForm(64, 32, 48, ((0, 32, _U8), (32, 40, _U8), (40, 44, _F16), (44, 48, _F16)), shifts=True),
    "Q2_K": BlockForm(256, 16, 84, ((0, 64, _U8), (64, 80, _U8), (80, 84, _F16)), shifts=True),
    "Q3_K": BlockForm(256, 16, 114, ((0, 64, _U8), (64, 96, _U8), (96, 112, _I8), (112, 114, _F16))),
    "Q4_K": BlockForm(256, 32, 148, ((0, 128, _U8), (128, 144, _U8), (144, 148, _F16)), shifts=True),
    "Q5_K": BlockForm(256, 32, 180, ((0, 128, _U8), (128, 160, _U8), (160, 176, _U8), (176, 180, _F16)), shifts=True),
    "Q6_K": BlockForm(256, 16, 210, ((0, 128, _U8), (128, 192, _U8), (192, 208, _I8), (208, 210, _F16))),
    "IQ4_NL": BlockForm(64, 32, 36, ((0, 32, _U8), (32, 36, _F16))),
    "IQ4_XS": BlockForm(256, 32, 138, ((0, 128, _U8), (128, 136, _I8), (136, 138, _F16))),
    "MXFP4": BlockForm(64, 32, 34, ((0, 32, _U8), (32, 34, _U8))),
    "NVFP4": BlockForm(64, 16, 36, ((0, 32, _U8), (32, 36, _U8))),
    "TQ1_0": BlockForm(256, 16, 54, ((0, 52, _U8), (52, 54, _F16))),
    "TQ2_0": BlockForm(256, 32, 66, ((0, 64, _U8), (64, 66, _F16))),
    "IQ2_XXS": BlockForm(256, 32, 66, ((2, 66, _U8), (2, 66, _I32), (0, 2, _F16))),
    "IQ2_XS": BlockForm(256, 16, 74, ((2, 66, _I16), (66, 74, _U8), (0, 2, _F16))),
    "IQ2_S": BlockForm(256, 16, 82, ((2, 66, _U8), (66, 82, _U8), (0, 2, _F16))),
    "IQ3_XXS": BlockForm(256, 32, 98, ((2, 66, _U8), (66, 98, _I32), (0, 2, _F16))),
    "IQ3_S": BlockForm(256, 32, 110, ((2, 66, _U8), (66, 110, _U8), (0, 2, _F16))),
    "IQ1_S": BlockForm(256, 32, 50, ((2, 34, _U8), (34, 50, _I16), (0, 2, _F16))),
    "IQ1_M": BlockForm(256, 16, 56, ((0, 32, _U8), (32, 48, _U8), (48, 56, _I16))),
}
# Of checkpoints, whose fields lie apart: bytes with a scale for 128, and E2M1 with one for 16 or 32.
FORMS |= {
    "BYTES": BlockForm(128, 32, 132, ((4, 132, _I8), (0, 4, _F32))),
    "FP4_16": BlockForm(64, 16, 48, ((0, 32, _U8), (32, 48, _F32))),
    "FP4_32": BlockForm(64, 32, 40, ((0, 32, _U8), (32, 40, _F32))),
}
_WITH_GRIDS = ("IQ1", "IQ2", "IQ3")
_MOST_PLANES = 4
_MOST_ARRANGED = 1 << 26  # columns at once


@dataclass(frozen=True, slots=True)
class Planes:
    """W [rows, cols]."""

    kind: str
    planes: tuple[torch.Tensor, ...]  # [rows, numbers of its field in a row] each; some may be views of one memory
    table: torch.Tensor  # [entries * values] int8: the grid of this type, where it has one
    cols: int

    @property
    def rows(self) -> int:
        return self.planes[0].shape[0]

    @property
    def form(self) -> BlockForm:
        return FORMS[self.kind]

    @property
    def four(self) -> tuple[torch.Tensor, ...]:
        """As many planes as kernels take; those that there are not, are others again."""
        return (*self.planes, *self.planes[:1] * (_MOST_PLANES - len(self.planes)))

    def room(self, dtype: torch.dtype, ids: torch.Tensor | None) -> torch.Tensor:
        """[rows, cols], or as many rows as there are ids"""
        rows = self.rows if ids is None else ids.shape[0]
        return torch.empty((rows, self.cols), dtype=dtype, device=self.planes[0].device)

    def rows_of(self, first: int, count: int) -> Planes:
        planes = tuple(plane[first : first + count] for plane in self.planes)
        return Planes(self.kind, planes, self.table, self.cols)


def planes_of(kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Planes | None:
    """blocks: [bytes] uint8 of a file; None: a type that has no decoder"""
    form = FORMS.get(kind)
    if form is None or cols % form.block:
        return None
    lines = _arranged(kind, blocks.view(rows * cols // form.block, -1), form.block).view(
        rows, cols // form.block, form.num_bytes
    )
    runs = {(start, stop): lines[..., start:stop].reshape(rows, -1) for start, stop, _ in form.fields}
    planes = tuple(runs[start, stop].contiguous().view(dtype) for start, stop, dtype in form.fields)
    return Planes(kind, planes, _table(kind, blocks.device), cols)


def _arranged(kind: str, lines: torch.Tensor, columns: int) -> torch.Tensor:
    """lines [n, bytes of so many columns in a file] -> [n, bytes of a block here]"""
    if kind not in ARRANGED:
        return lines
    step = _MOST_ARRANGED // columns
    return torch.cat([ARRANGED[kind](lines[first : first + step]) for first in range(0, len(lines), step)])


def planes_of_bytes(numbers: torch.Tensor, scales: torch.Tensor) -> Planes:
    """numbers [rows, cols] int8 or float8_e4m3fn, scales [rows, cols / 128] float32"""
    return Planes("BYTES", (numbers, scales), _table("BYTES", numbers.device), numbers.shape[1])


def planes_of_fp4(codes: torch.Tensor, scales: torch.Tensor) -> Planes | None:
    """codes [rows, cols] uint8 of E2M1, scales [rows, groups] float32; None: groups that have no decoder"""
    cols = codes.shape[1]
    kind = f"FP4_{cols // scales.shape[1]}"
    if kind not in FORMS or cols % FORMS[kind].block:
        return None
    return Planes(
        kind, (in_fours(codes), scales / 2), _table(kind, codes.device), cols
    )  # decoders have twice the values


def stacked_planes(parts: list[Planes]) -> Planes:
    """One below the other; all of one kind."""
    first = parts[0]
    if len(parts) == 1:
        return first
    joined: dict[tuple[int, int], torch.Tensor] = {}
    planes = []
    for number, (start, stop, dtype) in enumerate(first.form.fields):
        if (start, stop) not in joined:
            joined[start, stop] = torch.cat([part.planes[number] for part in parts])
        planes.append(joined[start, stop].view(dtype))
    return Planes(first.kind, tuple(planes), first.table, first.cols)


def _table(kind: str, device: torch.device) -> torch.Tensor:
    if kind.startswith(_WITH_GRIDS):
        return torch.from_numpy(block_grid(kind)).reshape(-1).to(device)
    return torch.zeros(16, dtype=torch.int8, device=device)
