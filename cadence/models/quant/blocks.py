"""Blocks of 32 columns, or 64, with scales: what the CPU's kernels multiply.

Beside types of GGUF there are some for numbers that those do not hold exactly. A block is, in bytes:
  Q4_Z  scale float16, zero float16 (a whole number), 16 of halves as in Q4_1: (quant - zero) * scale, exact in float32
  Q8_Z  the same with 32 of int8
  Q8_F  scale float32, 32 of int8: quant * scale
  T4_F  table of 16 int8, the same in all blocks of a matrix, two scales float32, 16 of halves as in Q4_1: table[half] *
        scale, the first scale for the first 16 columns
  NF4, FP4  of 64 columns: the largest float32, 16 of halves as in Q4_1 for the first 32 columns, 16 for the others: a
        whole number of NEAR_TABLES for each half, times the largest divided by that of those
  F8    scale float32, the same for each run of 128 columns, 32 of float8 E4M3: number * scale
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

BLOCK = 32
TABLE_BLOCK = 64
FLOAT8_RUN = 128  # columns that have one scale
# bitsandbytes' tables as whole numbers: nf4's times 15684, none off by more than 2^-15.9 of the largest; fp4's exactly.
NEAR_TABLES = {
    "NF4": (-15684, -10919, -8235, -6194, -4461, -2898, -1428, 0, 1248, 2524, 3860, 5300, 6912, 8824, 11339, 15684),
    "FP4": (0, 64, 8192, 12288, 4096, 6144, 2048, 3072, 0, -64, -8192, -12288, -4096, -6144, -2048, -3072),
}
_NEAR = 2.0**-15.9  # of one
_CHUNK = 1 << 22  # elements at once; bounds temporaries


def integer_blocks(
    quants: torch.Tensor, bits: int, zeros: torch.Tensor | int, scales: torch.Tensor
) -> tuple[str, torch.Tensor] | None:
    """quants [rows, cols] uint8, zeros [rows, groups] or one, scales [rows, groups] -> (kind, bytes) of
    (quants - zeros) * scales, or None where no kind holds that exactly."""
    rows, cols = quants.shape
    groups = scales.shape[1]
    if cols % (groups * BLOCK) or 4 < bits < 8:
        return None
    half = scales.to(torch.float16)
    exact = torch.equal(half.float(), scales.float())
    middle = 1 << (bits - 1)
    centred = bool((torch.as_tensor(zeros) == middle).all())
    if bits == 8 and centred:
        return _filled("Q8_0", quants, [half]) if exact else _filled("Q8_F", quants, [scales.float()])
    if not exact:
        return None
    if bits == 4 and centred:
        return _filled("Q4_0", quants, [half])
    zero = torch.as_tensor(zeros) - (middle if bits == 8 else 0)  # of signed bytes, or of what is stored
    kind = "Q8_Z" if bits == 8 else "Q4_Z"
    return _filled(kind, quants, [half, zero.to(torch.float16).expand(rows, groups)])


def signed_blocks(quants: torch.Tensor, scales: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """quants [rows, cols] int8, scales [rows, groups] -> the same of quants * scales"""
    return integer_blocks(quants.view(torch.uint8) ^ 128, 8, 128, scales)


def code_blocks(codes: torch.Tensor, table: Sequence[int], scales: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """codes [rows, cols] uint8 below 16, scales [rows, groups] -> (kind, bytes) of table[codes] * scales, or None where
    groups are no multiple of 16 columns."""
    rows, cols = codes.shape
    groups = scales.shape[1]
    if cols % BLOCK or cols % (groups * 16):
        return None
    each = scales.float().repeat_interleave(cols // 16 // groups, dim=1).view(-1, 2)
    out = torch.empty((rows * cols // BLOCK, 40), dtype=torch.uint8)
    out[:, :16] = torch.tensor(table, dtype=torch.int8).view(torch.uint8)
    out[:, 16:24] = each.contiguous().view(torch.uint8)
    out[:, 24:] = _halves(codes)
    return "T4_F", out.view(-1)


def table_blocks(codes: torch.Tensor, table: torch.Tensor, scales: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """codes [rows, cols] uint8 below 16, table [16] float32, scales [rows, groups] -> (kind, bytes) of table[codes] *
    scales, near enough (NEAR_TABLES), or None where no kind has that table or groups are no multiple of 64 columns."""
    cols, groups = codes.shape[1], scales.shape[1]
    kind = next((name for name in NEAR_TABLES if _is_near(table, NEAR_TABLES[name])), "")
    if not kind or cols % (groups * TABLE_BLOCK):
        return None
    each = scales.float().repeat_interleave(cols // TABLE_BLOCK // groups, dim=1).view(-1, 1)
    return kind, torch.cat([each.view(torch.uint8), _halves(codes).view(-1, TABLE_BLOCK // 2)], dim=1).view(-1)


def _is_near(table: torch.Tensor, numbers: Sequence[int]) -> bool:
    return bool(((torch.tensor(numbers) / max(numbers) - table).abs() <= _NEAR).all())


def power_blocks(codes: torch.Tensor, exponents: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """codes [rows, cols] of E2M1, exponents [rows, groups] uint8 -> (kind, bytes) of numbers * 2^(exponent - 127)"""
    cols, groups = codes.shape[1], exponents.shape[1]
    if cols % (groups * BLOCK):
        return None
    each = exponents.repeat_interleave(cols // BLOCK // groups, dim=1)
    return "MXFP4", torch.cat([each.view(-1, 1), _halves(codes)], dim=1).view(-1)


def float8_blocks(numbers: torch.Tensor, scales: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """numbers [rows, cols] float8 E4M3, scales [rows, groups] -> (kind, bytes) of numbers * scales, or None where
    groups are no multiple of 128 columns."""
    rows, cols = numbers.shape
    groups = scales.shape[1]
    if cols % BLOCK or (groups > 1 and cols % (groups * FLOAT8_RUN)):
        return None
    out = torch.empty((rows, cols // BLOCK, 4 + BLOCK), dtype=torch.uint8)
    each = scales.float().repeat_interleave(cols // BLOCK // groups, dim=1)
    out[..., :4] = each.contiguous().view(torch.uint8).view(rows, cols // BLOCK, 4)
    out[..., 4:] = numbers.contiguous().view(torch.uint8).view(rows, cols // BLOCK, BLOCK)
    return "F8", out.view(-1)


def _halves(codes: torch.Tensor) -> torch.Tensor:
    """[rows, cols] uint8 below 16 -> [blocks, 16]: the first sixteen of a block in the low halves of bytes"""
    runs = codes.reshape(-1, BLOCK)
    return runs[:, : BLOCK // 2] | (runs[:, BLOCK // 2 :] << 4)


def _filled(kind: str, quants: torch.Tensor, header: list[torch.Tensor]) -> tuple[str, torch.Tensor]:
    """header: [rows, groups] each, one after another in front of every block"""
    rows, cols = quants.shape
    eight = kind.startswith("Q8")
    heads = sum(part.element_size() for part in header)
    out = torch.empty((rows, cols // BLOCK, heads + (BLOCK if eight else BLOCK // 2)), dtype=torch.uint8)
    at = 0
    for part in header:
        as_bytes = part.contiguous().view(torch.uint8).view(rows, part.shape[1], 1, part.element_size())
        repeated = as_bytes.expand(-1, -1, cols // BLOCK // part.shape[1], -1)
        out[..., at : at + part.element_size()] = repeated.reshape(rows, cols // BLOCK, -1)
        at += part.element_size()
    step = max(1, _CHUNK // cols)
    for start in range(0, rows, step):
        run = quants[start : start + step].reshape(-1, cols // BLOCK, BLOCK)
        into = out[start : start + step, :, heads:]
        if eight:
            torch.bitwise_xor(run, 128, out=into)  # as signed bytes
        else:
            torch.bitwise_or(run[..., : BLOCK // 2], run[..., BLOCK // 2 :] << 4, out=into)
    return kind, out.view(-1)
