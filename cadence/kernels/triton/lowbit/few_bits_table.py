"""Values of four bits that are places in a table of sixteen numbers (nf4 and fp4 of bitsandbytes), in registers.

A table lies in memory as words:
  FLOATS  sixteen float32
  WHOLE   whole numbers of 16 bits, W = 256 * high + low with both bytes signed: first the sixteen high bytes, then the
          low ones
  UNIT    a float32: what 256 of those whole numbers are
For the tensor cores its numbers are part of the instructions: Triton keeps what comes out of such in registers where a
single operand goes into them.

QUICK: by instructions of NVIDIA's GPUs; else numbers are read from memory one by one.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

_WHOLE: tl.constexpr = tl.constexpr(16)
_UNIT: tl.constexpr = tl.constexpr(24)
_MOST = 32639  # whole numbers with signed bytes
_TRIED = 4096  # largest whole numbers, among which the least error is looked for


@dataclass(frozen=True, slots=True)
class CodeTable:
    words: torch.Tensor  # [25] int32; [0] = no table
    in_bfloat16: str  # instructions that turn codes into numbers; "" = no table
    in_float16: str

    @property
    def exists(self) -> bool:
        return self.in_bfloat16 != ""

    @property
    def numbers(self) -> torch.Tensor:
        """[16] float32"""
        return self.words[: _WHOLE.value].view(torch.float32)

    def lookup(self, dtype: torch.dtype) -> str:
        return self.in_bfloat16 if dtype is torch.bfloat16 else self.in_float16

    def to(self, device: torch.device) -> CodeTable:
        return replace(self, words=self.words.to(device))


NO_TABLE = CodeTable(torch.empty(0, dtype=torch.int32), "", "")


def code_table(table: torch.Tensor) -> CodeTable:
    """table [16] float32, with 1 as its largest"""
    halves = [_quarters(table.to(dtype)) for dtype in (torch.bfloat16, torch.float16)]
    return CodeTable(_words_of(table), halves[0], halves[1])


def _words_of(table: torch.Tensor) -> torch.Tensor:
    exact = table.double()
    largest = torch.arange(_MOST - _TRIED + 1, _MOST + 1, dtype=torch.float64)
    tried = exact[None, :] * largest[:, None]
    error = ((tried.round() - tried).abs() / tried.abs().clamp(min=1e-9)).amax(dim=1)  # of zeros none
    best = int(error.argmin())
    whole = tried[best].round().int()
    high = (whole + 128) >> 8
    parts = [
        table.view(torch.int32),
        _bytes(high.to(torch.int8), (whole - 256 * high).to(torch.int8)),
        (256.0 / largest[best : best + 1]).float().view(torch.int32),
    ]
    return torch.cat(parts)


def _bytes(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """[16] of 8 bits each -> [8] words"""
    return torch.cat([high, low]).view(torch.int32)


# Eight codes of four bits in a word WORD -> bytes that they stand for: HIGH and LOW of those in its low half, NEXT_HIGH
# and NEXT_LOW of those in its high half. A selector picks among eight bytes: once among the first eight, once among the
# last, and then between the two. T0 to T7: the table.
_LOOKUP = """
    and.b32 s, WORD, 0x77777777;
    shr.u32 p, WORD, 1;
    lop3.b32 p, p, 0x44444444, 0x32103210, 0xEA;
    shr.u32 t, s, 16;
    shr.u32 q, p, 16;
    prmt.b32 e, T0, T1, s;
    prmt.b32 f, T2, T3, s;
    prmt.b32 high, e, f, p;
    prmt.b32 e, T4, T5, s;
    prmt.b32 f, T6, T7, s;
    prmt.b32 low, e, f, p;
    prmt.b32 e, T0, T1, t;
    prmt.b32 f, T2, T3, t;
    prmt.b32 next_high, e, f, q;
    prmt.b32 e, T4, T5, t;
    prmt.b32 f, T6, T7, t;
    prmt.b32 next_low, e, f, q;
    """
_REGISTERS = ".reg .b32 s, p, t, q, e, f, high, low, next_high, next_low;"


# Two numbers of 16 bits -> four pairs of numbers of a type of 16 bits, of their lowest four bits and so on.
_PAIRS = """
    prmt.b32 e, low, high, 0x5140;
    prmt.b32 f, next_low, next_high, 0x5140;
    prmt.b32 $0, e, f, 0x5410;
    prmt.b32 $1, e, f, 0x7632;
    prmt.b32 e, low, high, 0x7362;
    prmt.b32 f, next_low, next_high, 0x7362;
    prmt.b32 $2, e, f, 0x5410;
    prmt.b32 $3, e, f, 0x7632;
    """


def _quarters(numbers: torch.Tensor) -> str:
    """numbers [16] of 16 bits"""
    both = numbers.view(torch.uint8).view(16, 2)
    words = _bytes(both[:, 1].contiguous(), both[:, 0].contiguous()).tolist()
    table = [f"mov.b32 T{place}, 0x{word & 0xFFFFFFFF:08X};" for place, word in enumerate(words)]
    registers = ".reg .b32 " + ", ".join(f"T{place}" for place in range(len(words))) + ";"
    return "{" + "\n".join([_REGISTERS, registers, *table]) + _LOOKUP.replace("WORD", "$4") + _PAIRS + "}"


# The sum of eight products of whole numbers in 256ths, but for low bytes by low bytes. $2 and $3 are the high bytes of
# what eight codes $1 are multiplied by, $4 and $5 the low ones.
_SUM = """
    dp4a.s32.s32 e, high, $2, 0;
    dp4a.s32.s32 e, next_high, $3, e;
    shl.b32 e, e, 8;
    dp4a.s32.s32 e, high, $4, e;
    dp4a.s32.s32 e, next_high, $5, e;
    dp4a.s32.s32 e, low, $2, e;
    dp4a.s32.s32 $0, next_low, $3, e;
    """
_TABLE = ".reg .b32 T0, T1, T2, T3, T4, T5, T6, T7;" + "".join(f"mov.b32 T{place}, ${6 + place};" for place in range(8))
_EIGHT: tl.constexpr = tl.constexpr("{" + _REGISTERS + _TABLE + _LOOKUP.replace("WORD", "$1") + _SUM + "}")
_EIGHT_OPERANDS: tl.constexpr = tl.constexpr("=r" + ",r" * 13)


@triton.jit
def words_of_whole(table_ptr, TABLE):
    """What `eight_of_table` takes; without a TABLE nothing."""
    words = ()
    if TABLE:
        at = table_ptr + _WHOLE
        words = (
            tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3),
            tl.load(at + 4), tl.load(at + 5), tl.load(at + 6), tl.load(at + 7),
        )  # fmt: skip
    return words


@triton.jit
def unit_of_table(table_ptr):
    return tl.load(table_ptr + _UNIT).to(tl.float32, bitcast=True)


@triton.jit
def numbers_of_table(code, table_ptr):
    """code: of any shape -> float32"""
    return tl.load(table_ptr + code).to(tl.float32, bitcast=True)


@triton.jit
def quarters_of_table(tile, table_ptr, DTYPE, LOOKUP, QUICK):
    """Numbers of 16 bits -> what the four codes of each stand for. LOOKUP: the table's instructions for this type"""
    if QUICK:
        if tl.bfloat16 == DTYPE:
            found = tl.inline_asm_elementwise(
                LOOKUP, "=r,=r,=r,=r,r", [tile], is_pure=True, pack=2,
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            )  # fmt: skip
        else:
            found = tl.inline_asm_elementwise(
                LOOKUP, "=r,=r,=r,=r,r", [tile], is_pure=True, pack=2,
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            )  # fmt: skip
        return found
    wide = tile.to(tl.int32)
    return (
        numbers_of_table(wide & 15, table_ptr).to(DTYPE), numbers_of_table(wide >> 4 & 15, table_ptr).to(DTYPE),
        numbers_of_table(wide >> 8 & 15, table_ptr).to(DTYPE), numbers_of_table(wide >> 12 & 15, table_ptr).to(DTYPE),
    )  # fmt: skip


@triton.jit
def _byte(word, PLACE):
    """With its sign."""
    return (word << (24 - PLACE)) >> 24


@triton.jit
def _byte_of_table(table_ptr, code, FIRST):
    return (tl.load(table_ptr + FIRST + code // 4) << (24 - code % 4 * 8)) >> 24


@triton.jit
def _four(codes, high_x, low_x, table_ptr):
    """As `eight_of_table`, of the low half of a word, in plain steps."""
    total = codes * 0
    for place in tl.static_range(4):
        code = codes >> (4 * place) & 15
        x = _byte(high_x, 8 * place)
        total += _byte_of_table(table_ptr, code, _WHOLE) * (x * 256 + _byte(low_x, 8 * place))
        total += _byte_of_table(table_ptr, code, _WHOLE + 4) * x
    return total


@triton.jit
def eight_of_table(codes, numbers, table_ptr, words, QUICK):
    """The sum of eight products, in units of `unit_of_table`. numbers: high bytes of what the first four codes of a
    word are multiplied by, and of the last four; then low bytes, all signed. Low bytes by low bytes are left out: that
    is no more than rounding the numbers to whole ones took."""
    high, next_high, low, next_low = numbers
    if QUICK:
        a, b, c, d, e, f, g, h = words
        return tl.inline_asm_elementwise(
            _EIGHT, _EIGHT_OPERANDS, [codes, high, next_high, low, next_low, a, b, c, d, e, f, g, h],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return _four(codes, high, low, table_ptr) + _four(codes >> 16, next_high, next_low, table_ptr)
