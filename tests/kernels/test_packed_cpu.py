"""Packed weights: nothing is lost in packing, products are what float64 says, and a row's bits depend on it alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.errors import ConfigError, WeightsError
from cadence.device.pool import ThreadPool
from cadence.kernels.cpu.packed.weights import Kind, PackedRows
from cadence.models.quant.block_kinds import block_size, values_of_blocks
from tests.helpers.packed_kinds import (
    EVERY,
    FLOATS,
    HALVES_AT,
    QUANTIZED,
    generator,
    make,
    make_x,
    random_blocks,
)
from tests.helpers.packing import (
    dequantize,
    functions,
    instruction_sets,
    pack_bf16,
    pack_f16,
    pack_f32,
    pack_gguf,
    pack_int4,
    pack_int8,
    packed_ops,
    packing,
)
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

ISAS = list(instruction_sets())
DTYPES = [torch.float32, torch.bfloat16]


def error_bound(x: torch.Tensor, weight: torch.Tensor, quantized: bool) -> torch.Tensor:
    """[M, N] float64: half a step of int8 per element of x where it is quantised, and the rounding of the sums."""
    x, weight = x.double().abs(), weight.double().abs()
    bound = x.shape[1] * 2.0**-23 * (x @ weight.T) + 1e-30
    if quantized:
        steps = x.unfold(1, 32, 32).amax(2) / 127  # [M, K / 32]
        bound += steps @ weight.unfold(1, 32, 32).sum(2).T * 0.5001
    return bound


@pytest.mark.parametrize("name", HALVES_AT)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_packing_keeps_every_bit(name: str, rows: int) -> None:
    raw = random_blocks(name, rows, 512)
    packed = pack_gguf(name, raw, rows, 512)
    assert torch.equal(dequantize(packed), values_of_blocks(name, raw, (rows, 512)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", EVERY)
def test_products_match_double_precision(name: str, isa: str) -> None:
    ops = packed_ops(isa)
    for rows, cols in ((1, 256), (3, 1280), (17, 768), (70, 512)):
        packed = make(name, rows, cols)
        weight = dequantize(packed)
        for count in (1, 2, 3, 4, 6, 17, 70):
            x = make_x(count, cols)
            off = (ops.linear(x, packed).double() - x.double() @ weight.double().T).abs()
            assert (off <= error_bound(x, weight, name in QUANTIZED)).all()


@pytest.mark.parametrize("name", [*FLOATS, "int8", "int4"])
def test_columns_need_not_fill_a_block(name: str) -> None:
    pack = {**FLOATS, "int8": pack_int8, "int4": pack_int4}[name]
    for rows, cols in ((5, 1), (16, 33), (2, 77)):
        packed = pack(make_x(rows, cols))
        weight, x = dequantize(packed), make_x(3, cols)
        assert weight.shape == (rows, cols)
        padded = -cols % 32
        wide_x, wide = (torch.nn.functional.pad(tensor, (0, padded)) for tensor in (x, weight))
        off = (packed_ops().linear(x, packed).double() - x.double() @ weight.double().T).abs()
        assert (off <= error_bound(wide_x, wide, name.startswith("int"))).all()


@pytest.mark.parametrize("name", EVERY)
def test_threads_do_not_change_a_bit(name: str) -> None:
    packed = make(name, 210, 512)
    for count in (1, 70):
        x = make_x(count, 512, torch.bfloat16 if name == "HALF" else torch.float32)
        results = []
        for threads in (1, 2, 3, 4):
            ops = packed_ops(pool=ThreadPool(functions(), threads))
            results.append(ops.linear(x, packed))
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("name", EVERY)
def test_instruction_sets_agree_bit_for_bit(name: str) -> None:
    """All but bf16 times bf16 or HALF, for which some have instructions that round in an order of their own. Counts of
    rows are those that kernels take together, and what is left over."""
    for dtype in DTYPES if name not in ("BF16", "HALF") else DTYPES[:1]:
        for rows, cols, counts in ((37, 1024, (1, 2, 3, 4, 23)), (18, 1280, (5, 7)), (3, 256, (9, 16, 17, 33, 260))):
            packed = make(name, rows, cols)
            for count in counts:
                x = make_x(count, cols, dtype)
                results = [packed_ops(isa).linear(x, packed) for isa in ISAS]
                assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "T4_F", "F8", *FLOATS])
def test_rows_may_begin_at_any_element(name: str, isa: str) -> None:
    ops, packed = packed_ops(isa), make(name, 20, 96)
    for dtype in DTYPES:
        for count in (1, 5, 8):
            memory, into = torch.zeros(1000, dtype=dtype), torch.zeros(1000, dtype=dtype)
            for start, stride in ((1, 97), (3, 99)):
                x = torch.as_strided(memory, (count, 96), (stride, 1), start)
                y = torch.as_strided(into, (count, 20), (stride, 1), start)
                x.copy_(make_x(count, 96, dtype))
                ops.run(ops.job(y, x, stack := PackedRows([packed]), None))
                assert torch.equal(y, ops.linear(x.contiguous(), stack))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_products_set_their_outputs_and_touch_nothing_else(name: str, isa: str) -> None:
    """With a bias sums are made elsewhere, without one perhaps where they are stored."""
    ops, packed, none = packed_ops(isa), make(name, 40, 1536), torch.zeros(40)
    for count in (4, 12, 13):
        frame, x = torch.full((count + 2, 48), float("nan")), make_x(count, 1536)
        y = frame[1:-1, 4:44]
        ops.run(ops.job(y, x, stack := PackedRows([packed]), None))
        assert torch.equal(y, ops.linear(x, stack, none))
        assert frame.isnan().sum() == frame.numel() - y.numel()


def test_stacked_weights_of_several_kinds_are_one_product() -> None:
    ops, kinds = packed_ops(), ["Q4_1", "Q8_0", "BF16", "Q6_K", "F32", "F16", "HALF", "F8", "IQ4_XS", "NF4", "Q2_K"]
    parts = [make(name, rows, 256) for name, rows in zip(kinds, (48, 5, 16, 33, 1, 20, 7, 9, 11, 18, 2), strict=True)]
    bias = torch.randn(170, generator=generator(3))
    for dtype in DTYPES:
        x = make_x(9, 256, dtype)
        apart = torch.cat([ops.linear(x, part, out_dtype=torch.float32) for part in parts], dim=1)
        assert torch.equal(ops.linear(x, parts, out_dtype=torch.float32), apart)
        assert torch.equal(ops.linear(x, PackedRows(parts), bias, torch.float32), apart + bias)
        assert torch.equal(ops.linear(x, parts, bias), (apart + bias).to(dtype))


def test_rows_of_x_may_lie_apart() -> None:
    ops, packed = packed_ops(), make("Q4_1", 20, 64)
    wide = make_x(6, 160)
    assert torch.equal(ops.linear(wide[:, 32:96], packed), ops.linear(wide[:, 32:96].contiguous(), packed))
    assert torch.equal(ops.linear(wide[:, ::2][:, :64], packed), ops.linear(wide[:, ::2][:, :64].contiguous(), packed))
    assert ops.linear(wide[:0, :64], packed).shape == (0, 20)
    half = wide[:, :64].to(torch.float16)
    assert torch.equal(ops.linear(half, packed), ops.linear(half.float(), packed).to(torch.float16))


@pytest.mark.parametrize("isa", ISAS)
def test_float16_is_multiplied_exactly_as_float32(isa: str) -> None:
    """Whatever the size of x and of weights, subnormal ones among them."""
    ops, pick = packed_ops(isa), generator(5)
    bits = torch.randint(-(2**15), 2**15, (37, 128), generator=pick, dtype=torch.int16)
    weight = torch.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).view(torch.float16)
    for size in (1e-30, 1.0, 40000.0, 1e30):
        for count in (1, 2, 3, 9):
            x = make_x(count, 128) * size
            assert torch.equal(ops.linear(x, pack_f16(weight)), ops.linear(x, pack_f32(weight)))
    assert torch.equal(dequantize(pack_f16(weight)), weight.float())
    raw = weight.view(torch.uint8).reshape(-1)
    assert torch.equal(pack_gguf("F16", raw, 37, 128).data, pack_f16(weight).data)


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_a_number_stays_in_its_row(isa: str) -> None:
    ops, packed = packed_ops(isa), make("Q4_1", 20, 64)
    x = make_x(6, 64)
    clean = ops.linear(x, packed)
    x[1, 3], x[2, 40], x[3], x[4] = float("nan"), float("inf"), 0.0, 1e-42
    out = ops.linear(x, packed)
    assert out[1:3].isfinite().sum() == 0
    assert out[3].abs().max() == 0
    assert out[4].abs().max() < 1e-35
    assert torch.equal(out[[0, 5]], clean[[0, 5]])


@pytest.mark.parametrize("name", EVERY)
def test_embedding_reads_rows_of_a_packed_weight(name: str) -> None:
    ops, packed = packed_ops(), make(name, 40, 256)
    ids = torch.tensor([39, 0, 7, 7, 16])
    rows = dequantize(packed)[ids]
    assert torch.equal(ops.embed(ids, packed), rows)
    assert torch.equal(ops.embed(ids.int(), packed), rows)
    assert torch.equal(ops.embed(ids, packed, torch.bfloat16), rows.to(torch.bfloat16))
    for bad in (-1, 40, 2**40):
        with pytest.raises(ValueError, match="between 0 and 39"):
            ops.embed(torch.tensor([0, bad]), packed)


def test_quantising_on_load_stays_within_its_steps() -> None:
    weight = make_x(33, 256)
    runs = weight.view(33, 8, 32)
    eight = dequantize(pack_int8(weight)).view(33, 8, 32)
    step = runs.abs().amax(2, keepdim=True) / 127
    assert ((eight - runs).abs() <= step * 0.5 + runs.abs() * 2.0**-10).all()  # the scale is rounded to float16
    four = dequantize(pack_int4(weight)).view(33, 8, 32)
    low, high = runs.amin(2, keepdim=True), runs.amax(2, keepdim=True)
    plain = ((runs - low) / (high - low) * 15).round() / 15 * (high - low) + low
    assert (four - runs).square().sum() < 0.95 * (plain - runs).square().sum()
    assert torch.equal(dequantize(pack_int4(torch.full((3, 64), 0.25))), torch.full((3, 64), 0.25))
    with pytest.raises(WeightsError, match="finite"):
        pack_int8(torch.tensor([[1.0, float("nan")]]))


@examples(25, 200)
@given(
    name=st.sampled_from(EVERY),
    rows=st.integers(-1, 40) | st.sampled_from([2**31, 2**40, 2**62]),
    cols=st.integers(-1, 600) | st.sampled_from([32, 256, 2**31, 2**62]),
    nbytes=st.integers(0, 4000),
)
def test_sizes_that_lie_are_refused(name: str, rows: int, cols: int, nbytes: int) -> None:
    block, block_bytes = block_size("F16" if name == "HALF" else name)
    true_size = rows * cols // block * block_bytes if cols % block == 0 else -1
    if nbytes == true_size and nbytes > 0:
        nbytes += 1
    with pytest.raises(WeightsError):
        pack_gguf(name, torch.zeros(nbytes, dtype=torch.uint8), rows, cols)
    with pytest.raises(WeightsError):
        packing().weight(Kind[name], rows, cols, torch.zeros(max(nbytes, 1) * 64 + 1, dtype=torch.uint8))


def test_misuse_is_refused() -> None:
    ops, packed = packed_ops(), make("Q4_1", 20, 64)
    for bad in (make_x(2, 65), make_x(2, 64)[0]):
        with pytest.raises(ValueError, match="x must be"):
            ops.linear(bad, packed)
    with pytest.raises(ValueError, match="bias must be"):
        ops.linear(make_x(2, 64), packed, torch.zeros(19))
    with pytest.raises(WeightsError, match="IQ2_XXS cannot be packed"):
        pack_gguf("IQ2_XXS", torch.zeros(66, dtype=torch.uint8), 1, 256)
    with pytest.raises(WeightsError, match="HALF cannot be packed"):  # no file has it
        pack_gguf("HALF", torch.zeros(64, dtype=torch.uint8), 1, 32)
    with pytest.raises(WeightsError, match="differ in columns"):
        PackedRows([packed, make("Q4_1", 20, 96)])
    with pytest.raises(WeightsError, match="float matrix"):
        pack_bf16(torch.zeros(4, 4, dtype=torch.int32))
    with pytest.raises(ConfigError, match="instruction set 'mmx'"):
        packed_ops("mmx")
