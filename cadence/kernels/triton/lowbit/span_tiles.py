"""Planes of words (`span_planes`) as the left side of the tensor cores. Of every type there are two functions:

load(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN)
    tiles of spans [FIRST, FIRST + SPANS) of rows [ROWS]; EVEN: all of them are there
numbers(held, QUICK)
    of that, numbers of columns 0 to 15 of every span, then of 16 to 31 and so on, four of [ROWS, 16 * SPANS] float32,
    each `lift` too large (`SpanKind`) where QUICK

An element of a tile holds what is needed of column j and of 16 + j, 32 + j and 48 + j: threads that have it make
all four numbers of it, and nothing goes from one to another. QUICK: by instructions of NVIDIA's GPUs.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

import triton
import triton.language as tl

from cadence.core.block_grids import FP4_VALUES, IQ4_VALUES
from cadence.kernels.triton.lowbit.span_decoders import eight_bytes

LIFT = 128  # bits put after the binary point of this number need no conversion to become a float
_LIFTED = 0x43000000  # it, as a float32; its bit 16 is worth one
_ONE = 16

# Of elements with pieces of a number: how many bits an element has, how many a piece.
_FOURS, _TWOS, _ONES = (16, 4), (8, 2), (8, 1)


def _joined(*pieces: tuple[int, int]) -> str:
    """Four elements of each tile -> sixteen floats: of the first column of each, then of the second, and so on. Pieces
    of a number from the lowest up."""
    lines, register, place = [], 16, _ONE
    for size, bits in pieces:
        mask = ((1 << bits) - 1) << place
        for number in range(16):
            column, element = divmod(number, 4)
            source = f"${register + element * size // 32}"
            at = element * size % 32 + column * bits
            base = f"{_LIFTED:#x}" if place == _ONE else f"${number}"
            if at != place:
                lines.append(f"sh{'r' if at > place else 'l'}.b32 t, {source}, {abs(at - place)};")
                source = "t"
            lines.append(f"lop3.b32 ${number}, {source}, {mask:#x}, {base}, 0xEA;")
        register, place = register + size // 8, place + bits
    return "{ .reg .b32 t;\n" + "\n".join(lines) + "}"


# Two elements of four codes -> eight floats. A selector picks among eight bytes: once among the first eight, once among
# the last, and then between the two. Bytes are 128 too large, and become the last ones of 2**23.
_LOOKUP = """
    {
    .reg .b32 s, p, e, f, found;
    .reg .f32 number;
    and.b32 s, $8, 0x77777777;
    shr.u32 p, $8, 1;
    lop3.b32 p, p, 0x44444444, 0x32103210, 0xEA;
"""
_LOOKUP_ELEMENT = """
    prmt.b32 e, 0xWORD0, 0xWORD1, s;
    prmt.b32 f, 0xWORD2, 0xWORD3, s;
    prmt.b32 found, e, f, p;
"""


def _looked_up_floats(values: tuple[int, ...]) -> str:
    element_text = _LOOKUP_ELEMENT
    for word in range(4):
        four = bytes(value + 128 for value in values[4 * word : 4 * word + 4])
        element_text = element_text.replace(f"WORD{word}", four[::-1].hex())
    text = _LOOKUP
    for element in range(2):
        text += element_text
        for column in range(4):
            text += f"prmt.b32 number, found, 0x4B000000, {0x7440 + column:#x};\n"
            text += f"add.f32 number, number, 0fCB000080; mov.b32 ${2 * column + element}, number;\n"
        text += "shr.u32 s, s, 16; shr.u32 p, p, 16;\n" if element == 0 else "}"
    return text


def _byte_floats() -> str:
    """Four bytes with signs -> four floats."""
    text = "{ .reg .b32 t; .reg .f32 number;\nxor.b32 t, $4, 0x80808080;\n"
    for element in range(4):
        text += f"prmt.b32 number, t, 0x4B000000, {0x7440 + element:#x};\n"
        text += f"add.f32 number, number, 0fCB000080; mov.b32 ${element}, number;\n"
    return text + "}"


def _registers(outputs: int, inputs: int) -> str:
    return ",".join(["=r"] * outputs + ["r"] * inputs)


_FOUR: tl.constexpr = tl.constexpr(_joined(_FOURS))
_FIVE: tl.constexpr = tl.constexpr(_joined(_FOURS, _ONES))
_SIX: tl.constexpr = tl.constexpr(_joined(_FOURS, _TWOS))
_TWO: tl.constexpr = tl.constexpr(_joined(_TWOS))
_THREE: tl.constexpr = tl.constexpr(_joined(_TWOS, _ONES))
_IQ4: tl.constexpr = tl.constexpr(_looked_up_floats(IQ4_VALUES))
_IQ4_FIRST: tl.constexpr = tl.constexpr(eight_bytes(IQ4_VALUES[:8]))
_IQ4_LAST: tl.constexpr = tl.constexpr(eight_bytes(IQ4_VALUES[8:]))
_FP4: tl.constexpr = tl.constexpr(_looked_up_floats(FP4_VALUES))
_FP4_FIRST: tl.constexpr = tl.constexpr(eight_bytes(FP4_VALUES[:8]))
_FP4_LAST: tl.constexpr = tl.constexpr(eight_bytes(FP4_VALUES[8:]))
_BYTES: tl.constexpr = tl.constexpr(_byte_floats())
_16_1: tl.constexpr = tl.constexpr(_registers(16, 1))
_16_2: tl.constexpr = tl.constexpr(_registers(16, 2))
_16_3: tl.constexpr = tl.constexpr(_registers(16, 3))
_8_1: tl.constexpr = tl.constexpr(_registers(8, 1))
_4_1: tl.constexpr = tl.constexpr(_registers(4, 1))

# Of the bytes of four elements the low halves, then the high ones.
_NIBBLES: tl.constexpr = tl.constexpr(
    "{ .reg .b32 t; and.b32 $0, $2, 0x0F0F0F0F; shr.u32 t, $2, 4; and.b32 $1, t, 0x0F0F0F0F; }"
)


@triton.jit
def _elements(plane, row, exists, FIRST, WIDTH, SPANS, COUNT, EVEN):
    """[ROWS, COUNT * SPANS]: of a plane with COUNT elements for a span"""
    place = tl.arange(0, COUNT * SPANS)
    span = FIRST + place // COUNT
    at = plane + row[:, None] * (WIDTH // 64 * COUNT) + (FIRST * COUNT + place)[None, :]
    if EVEN:
        return tl.load(at)
    return tl.load(at, exists[:, None] & (span < WIDTH // 64)[None, :], other=0)


@triton.jit
def _fours(a, row, exists, FIRST, WIDTH, SPANS, EVEN):
    return _elements(a.to(tl.pointer_type(tl.int16)), row, exists, FIRST, WIDTH, SPANS, 16, EVEN)


@triton.jit
def _ones(b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    """[ROWS, 16 * SPANS], four bits each"""
    held = _elements(b, row, exists, FIRST, WIDTH, SPANS, 8, EVEN)
    if QUICK:
        low, high = tl.inline_asm_elementwise(
            _NIBBLES, "=r,=r,r", [held], dtype=(tl.uint8, tl.uint8), is_pure=True, pack=4
        )
    else:
        low, high = held & 15, held >> 4
    both = tl.reshape(tl.join(low, high), [held.shape[0], SPANS, 8, 2])
    return tl.reshape(tl.permute(both, [0, 1, 3, 2]), [held.shape[0], 16 * SPANS])


@triton.jit
def tiles_four(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    return (_fours(a, row, exists, FIRST, WIDTH, SPANS, EVEN),)


@triton.jit
def tiles_codes(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    """And where their table is."""
    return _fours(a, row, exists, FIRST, WIDTH, SPANS, EVEN), b


@triton.jit
def tiles_four_one(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    fours = _fours(a, row, exists, FIRST, WIDTH, SPANS, EVEN)
    return fours, _ones(b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK)


@triton.jit
def tiles_four_two(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    fours = _fours(a, row, exists, FIRST, WIDTH, SPANS, EVEN)
    return fours, _elements(b, row, exists, FIRST, WIDTH, SPANS, 16, EVEN)


@triton.jit
def tiles_two(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    return (_elements(a, row, exists, FIRST, WIDTH, SPANS, 16, EVEN),)


@triton.jit
def tiles_two_one(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    twos = _elements(a, row, exists, FIRST, WIDTH, SPANS, 16, EVEN)
    return twos, _ones(b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK)


@triton.jit
def tiles_bytes(a, b, row, exists, FIRST, WIDTH, SPANS, EVEN, QUICK):
    """Four of [ROWS, 16 * SPANS]."""
    place = tl.arange(0, 16 * SPANS)
    j, span = place % 16, FIRST + place // 16
    byte = span * 64 + j // 8 * 32 + j // 4 % 2 * 8 + j % 4
    at = a + row[:, None] * WIDTH + tl.max_contiguous(tl.multiple_of(byte, 4), 4)[None, :]  # words are whole
    if EVEN:
        return tl.load(at), tl.load(at + 4), tl.load(at + 16), tl.load(at + 20)
    inside = exists[:, None] & (span < WIDTH // 64)[None, :]
    return (
        tl.load(at, inside, other=0), tl.load(at + 4, inside, other=0),
        tl.load(at + 16, inside, other=0), tl.load(at + 20, inside, other=0),
    )  # fmt: skip


@triton.jit
def _as_floats(four):
    return (
        four[0].to(tl.float32, bitcast=True), four[1].to(tl.float32, bitcast=True),
        four[2].to(tl.float32, bitcast=True), four[3].to(tl.float32, bitcast=True),
    )  # fmt: skip


@triton.jit
def _by_asm(ASM, REGISTERS, held, PACK):
    return _as_floats(
        tl.inline_asm_elementwise(
            ASM, REGISTERS, held, dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=PACK
        )
    )


@triton.jit
def _piece(held, BITS, COLUMN, PLACE):
    """Bits of column COLUMN, moved to PLACE."""
    return (held.to(tl.int32) >> (BITS * COLUMN) & ((1 << BITS) - 1)) << PLACE


@triton.jit
def _plain(low, high, LOW, HIGH):
    """Of LOW bits of `low` and HIGH ones of `high`."""
    return (
        (_piece(low, LOW, 0, 0) | _piece(high, HIGH, 0, LOW)).to(tl.float32),
        (_piece(low, LOW, 1, 0) | _piece(high, HIGH, 1, LOW)).to(tl.float32),
        (_piece(low, LOW, 2, 0) | _piece(high, HIGH, 2, LOW)).to(tl.float32),
        (_piece(low, LOW, 3, 0) | _piece(high, HIGH, 3, LOW)).to(tl.float32),
    )


@triton.jit
def numbers_four(held, QUICK):
    if QUICK:
        return _by_asm(_FOUR, _16_2, [held[0]], 4)
    return _plain(held[0], held[0] * 0, 4, 1)


@triton.jit
def numbers_five(held, QUICK):
    if QUICK:
        return _by_asm(_FIVE, _16_3, [held[0], held[1]], 4)
    return _plain(held[0], held[1], 4, 1)


@triton.jit
def numbers_six(held, QUICK):
    if QUICK:
        return _by_asm(_SIX, _16_3, [held[0], held[1]], 4)
    return _plain(held[0], held[1], 4, 2)


@triton.jit
def numbers_two(held, QUICK):
    if QUICK:
        return _by_asm(_TWO, _16_1, [held[0]], 4)
    return _plain(held[0], held[0] * 0, 2, 1)


@triton.jit
def numbers_three(held, QUICK):
    if QUICK:
        return _by_asm(_THREE, _16_2, [held[0], held[1]], 4)
    return _plain(held[0], held[1], 2, 1)


@triton.jit
def _byte(held, QUICK):
    if QUICK:
        found = tl.inline_asm_elementwise(_BYTES, _4_1, [held], dtype=tl.int32, is_pure=True, pack=4)
        return found.to(tl.float32, bitcast=True)
    return held.to(tl.float32)


@triton.jit
def numbers_eight(held, QUICK):
    return _byte(held[0], QUICK), _byte(held[1], QUICK), _byte(held[2], QUICK), _byte(held[3], QUICK)


@triton.jit
def _of_code(held, COLUMN, FIRST, LAST):
    code = held.to(tl.int32) >> (4 * COLUMN) & 15
    byte = tl.where(code < 8, FIRST, LAST) >> ((code & 7) * 8).to(tl.int64)
    return (byte.to(tl.int32) << 24 >> 24).to(tl.float32)


@triton.jit
def _of_table(held, ASM, FIRST, LAST, QUICK):
    if QUICK:
        return _by_asm(ASM, _8_1, [held[0]], 2)
    return (
        _of_code(held[0], 0, FIRST, LAST), _of_code(held[0], 1, FIRST, LAST),
        _of_code(held[0], 2, FIRST, LAST), _of_code(held[0], 3, FIRST, LAST),
    )  # fmt: skip


@triton.jit
def numbers_iq4(held, QUICK):
    return _of_table(held, _IQ4, _IQ4_FIRST, _IQ4_LAST, QUICK)


@triton.jit
def numbers_fp4(held, QUICK):
    """Twice what the codes stand for."""
    return _of_table(held, _FP4, _FP4_FIRST, _FP4_LAST, QUICK)
