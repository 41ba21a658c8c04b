"""bfloat16 weights multiplied in float16: how far from float64 they may be, and what never leaves the range."""

from __future__ import annotations

import pytest
import torch

from cadence.device.pool import ThreadPool
from tests.helpers.packing import (
    dequantize,
    functions,
    instruction_sets,
    multiplies_halves,
    pack_bf16,
    pack_half,
    packed_ops,
)

pytestmark = pytest.mark.device

RUN = 64  # columns summed in float16
ISAS = list(instruction_sets())
SHAPES = ((1, 1), (5, 7), (16, 33), (50, 96), (37, 576), (20, 1000))  # (rows, columns) of weights
COUNTS = (1, 2, 3, 4, 5, 8, 9, 11, 13, 31, 70)
HUGE = torch.finfo(torch.bfloat16).max
half_only = pytest.mark.skipif(not multiplies_halves(), reason="this CPU has no float16 products of packed weights")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """bfloat16, rows of sizes that differ."""
    pick = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return (torch.randn(shape, generator=pick) * torch.randn((shape[0], 1), generator=pick).exp()).bfloat16()


def error_bound(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[M, N] float64. A float16 addition is off by at most 2^-11 of the sum it gives: so is a run by 2^-11 of all its
    sums on the way, and by their errors in turn. The rest: float16 ends at 2^-25, float32 rounds sums of runs."""
    columns = torch.nn.functional.pad(torch.arange(x.shape[1]), (0, -x.shape[1] % RUN), value=-1).view(-1, RUN)
    bound = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for run in columns:
        picked = run[run >= 0]
        products = x[:, None, picked].double() * weight[None, :, picked].double()
        bound += products.cumsum(2).abs().sum(2) * (2.0**-11 * (1 + RUN * 2.0**-11))
    largest = x.double().abs().amax(1)[:, None] * weight.double().abs().amax(1)[None]
    return bound + x.shape[1] * (largest * 2.0**-23 + 2.0**-23 * x.double().abs() @ weight.double().abs().T) + 1e-37


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() @ weight.double().T


@pytest.mark.parametrize("isa", ISAS)
def test_products_stay_within_the_rounding_of_float16(isa: str) -> None:
    ops = packed_ops(isa)
    for rows, cols in SHAPES:
        weight = random(rows, cols)
        packed = pack_half(weight)
        assert torch.equal(dequantize(packed), weight.float())
        for count in COUNTS:
            x = random(count, cols, seed=1)
            y = ops.linear(x, packed, out_dtype=torch.float32).double()
            assert ((y - exact(x, weight)).abs() <= error_bound(x, weight)).all()


@half_only
def test_the_usual_error_is_like_that_of_rounding_x_to_bfloat16() -> None:
    wide, weight = torch.randn((64, 1024), generator=torch.Generator().manual_seed(9)), random(200, 1024)
    x = wide.bfloat16()
    y = packed_ops().linear(x, pack_half(weight), out_dtype=torch.float32).double()
    size = (x.double().square() @ weight.double().square().T).sqrt()
    summing, rounding = ((y - exact(x, weight)) / size).norm(), (exact(x - wide, weight) / size).norm()
    assert 0.5 * rounding < summing < 2 * rounding  # less: it was not done in float16


def test_small_integers_are_exact() -> None:
    pick = torch.Generator().manual_seed(0)
    for rows, cols in SHAPES:
        weight = torch.randint(-4, 5, (rows, cols), generator=pick).bfloat16()
        x = torch.randint(-4, 5, (13, cols), generator=pick).bfloat16()
        for isa in ISAS:
            y = packed_ops(isa).linear(x, pack_half(weight), out_dtype=torch.float32)
            assert torch.equal(y.double(), exact(x, weight))


@pytest.mark.parametrize("isa", [isa for isa in ISAS if not multiplies_halves(isa)])
def test_without_float16_products_it_is_the_bfloat16_weight_in_float32(isa: str) -> None:
    weight, ops = random(37, 200), packed_ops(isa)
    for count in (1, 3, 9):
        x = random(count, 200, seed=2).float()
        assert torch.equal(ops.linear(x, pack_half(weight)), ops.linear(x, pack_bf16(weight)))


@half_only
def test_a_row_has_the_same_bits_in_any_company() -> None:
    """Of every length of the last tile, with whole and half runs left over, on any number of threads. Runs differ in
    size: else their sums, eleven bits each, would be exact in float32 in any order."""
    for cols in (32, 64, 96, 320, 576, 608):
        sizes = 2.0 ** -(torch.arange(cols) // RUN * 7 % 17)
        packed, x = pack_half(random(40, cols)), random(24, cols, seed=3) * sizes.bfloat16()
        together = packed_ops().linear(x, packed, out_dtype=torch.float32)
        for count in range(1, 24):
            ops = packed_ops(pool=ThreadPool(functions(), 1 + count % 4))
            part = ops.linear(x[24 - count :], packed, out_dtype=torch.float32)
            assert torch.equal(part, together[24 - count :])


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_any_size(isa: str) -> None:
    """One element far beyond the others; rows as large and as small as bfloat16 has them."""
    ops, cols = packed_ops(isa), 160
    weight, x = random(20, cols), random(12, cols, seed=4)
    x[1, 70] = x[1].abs().amax() * 2**12
    x[2] *= 2.0**-100
    x[3] = HUGE
    x[4] = x[4] / x[4].abs().amax() * 2.0**-130  # subnormal
    x[5] = 0
    weight[1, 5] = weight[1].abs().amax() * 2**12
    weight[2] *= 2.0**-40
    weight[3] = HUGE
    weight[4] = 0
    assert torch.equal(dequantize(pack_half(weight)), weight.float())
    y, wanted = ops.linear(x, pack_half(weight), out_dtype=torch.float32).double(), exact(x, weight)
    fits = wanted.abs() < torch.finfo(torch.float32).max / 256  # sums on the way fit too
    assert fits.sum() > 200
    assert ((y - wanted).abs() <= error_bound(x, weight))[fits].all()
    assert y[5].abs().max() == y[:, 4].abs().max() == 0


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_stays_in_its_row_and_column(isa: str) -> None:
    ops, weight, x = packed_ops(isa), random(20, 96), random(11, 96, seed=5)
    clean = ops.linear(x, pack_half(weight))
    x[2, 40], x[9, 0], x[10, 95] = float("inf"), float("nan"), float("-inf")
    weight[3, 7], weight[17, 95] = float("nan"), float("inf")
    rows, cols = [0, 1, *range(3, 9)], [i for i in range(20) if i not in (3, 17)]
    packed = pack_half(weight)
    assert torch.equal(dequantize(packed).nan_to_num(), weight.float().nan_to_num())
    y = ops.linear(x, packed)
    assert not y[[2, 9, 10]].isfinite().any() and not y[:, [3, 17]].isfinite().any()
    assert torch.equal(y[rows][:, cols], clean[rows][:, cols])
