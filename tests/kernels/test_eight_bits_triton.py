"""Products of eight bits by eight bits on Triton kernels, and who rounds the activations for them."""

from __future__ import annotations

from tests.helpers.triton_mode import DEVICE, interpret, interpret_each_once  # isort: skip - before triton

from collections.abc import Callable
from functools import cache

import pytest
import torch

from cadence.kernels.interface.ops import Pair
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.triton.lowbit.checkpoint_numbers import of_numbers
from cadence.kernels.triton.lowbit.eight_rows import choose_eight, linear_eight
from cadence.kernels.triton.lowbit.few_bits import Stored, as_fp8, as_int8
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix
from cadence.kernels.triton.lowbit.quantized_rows import normed_rows, quantized_rows
from cadence.kernels.triton.ops import TritonOps
from cadence.models.quant.blocks import integer_blocks

pytestmark = pytest.mark.device

WIDTH, OUTPUTS = 512, 128
OPS = TritonOps()
KINDS = (torch.float8_e4m3fn, torch.int8)


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def in_groups(kind: torch.dtype, group: int) -> Stored:
    """What a checkpoint has of a matrix with a scale for each row and group."""
    values = normal(OUTPUTS, WIDTH, seed=2) * 4
    numbers = values.to(kind) if kind.is_floating_point else (values * 20).round().to(kind)
    scales = torch.rand((OUTPUTS, WIDTH // group), generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    found = of_numbers(ScaledNumbers(numbers.cpu(), scales), torch.device(DEVICE))
    assert found is not None and found.group == group
    expected = numbers.float().view(OUTPUTS, -1, group) * scales.to(DEVICE).float().unsqueeze(2)
    assert torch.equal(found.widened(), expected.view(OUTPUTS, WIDTH))
    return found


CASES: dict[str, Callable[[], Stored]] = {
    "fp8": lambda: as_fp8(normal(OUTPUTS, WIDTH, seed=2)),
    "int8": lambda: as_int8(normal(OUTPUTS, WIDTH, seed=2)),
    "fp8 in groups": lambda: in_groups(torch.float8_e4m3fn, 128),
    "int8 in groups": lambda: in_groups(torch.int8, 128),
}
FEW = ["fp8", "int8 in groups"]


@cache
def case(name: str) -> Stored:
    return CASES[name]()


def check_same(found: Pair, expected: Pair) -> None:
    """To the bit in the interpreter; a GPU may add up a norm's squares in another order."""
    if DEVICE == "cpu":
        assert torch.equal(found[0].float(), expected[0].float()) and torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-2, atol=0)
    assert (rounded(found) - rounded(expected)).norm() < 1e-2 * rounded(expected).norm()


def check_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    if DEVICE == "cpu":
        assert torch.equal(found, expected)
    assert (found - expected).float().norm() < 2e-2 * expected.float().norm()


def rounded(quants: Pair) -> torch.Tensor:
    return quants[0].float() * quants[1]


@pytest.mark.parametrize(("name", "rows", "fixed"), interpret_each_once([*CASES], [1, 3, 70], [False, True]))
def test_products(name: str, rows: int, fixed: bool) -> None:
    weight = case(name)
    quants = quantized_rows(normal(rows, WIDTH), weight.values.dtype, False)
    tile, bias = choose_eight(rows, weight, False, fixed), normal(OUTPUTS, seed=4)
    assert tile is not None and tile.terms == 1
    found = linear_eight(quants, weight, bias, torch.float32, tile, False)
    expected = rounded(quants) @ weight.widened().T + bias
    error = 1e-3 if weight.values.dtype is torch.int8 or DEVICE == "cpu" else 2e-2  # the GPU adds fp8 in few bits
    torch.testing.assert_close(found, expected, rtol=error, atol=error * float(expected.abs().max()))


@pytest.mark.parametrize("name", interpret(CASES, FEW))
def test_terms_add_up(name: str) -> None:
    weight = case(name)
    quants = quantized_rows(normal(5, WIDTH), weight.values.dtype, False)
    tile, bias = choose_eight(5, weight, True, False), normal(OUTPUTS, seed=4)
    assert tile is not None and tile.terms > 1
    found = linear_eight(quants, weight, bias, torch.float32, tile, False)
    assert found.shape == (tile.terms, 5, OUTPUTS)
    expected = rounded(quants) @ weight.widened().T + bias
    torch.testing.assert_close(found.sum(dim=0), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
    fixed = choose_eight(5, weight, True, True)
    assert fixed is not None and fixed.terms == 1, "of a fixed product nothing is split"


@pytest.mark.parametrize("name", interpret(CASES, FEW))
def test_rows_of_a_fixed_product_have_their_bits(name: str) -> None:
    matrix = FewBitsMatrix(case(name), torch.bfloat16, True, False)
    x = normal(70, WIDTH, dtype=torch.bfloat16)
    whole = matrix.linear(x, None)
    for some in (slice(0, 1), slice(3, 9), slice(0, 17)):
        assert torch.equal(matrix.linear(x[some].contiguous(), None), whole[some])


@pytest.mark.parametrize("kind", interpret(KINDS, KINDS[1:]))
def test_a_norm_and_a_gate_round_what_they_make(kind: torch.dtype) -> None:
    stream = normal(5, WIDTH, dtype=torch.bfloat16), normal(5, WIDTH, seed=2, dtype=torch.bfloat16)
    norm = normal(WIDTH, seed=3, dtype=torch.bfloat16), 1e-5
    normed, total = OPS.add_rms_norm(*stream, *norm)
    quants, kept = normed_rows(stream, norm, kind, False)
    assert torch.equal(kept, total)
    check_same(quants, quantized_rows(normed, kind, False))
    both = normal(5, 2 * WIDTH, seed=6, dtype=torch.bfloat16)
    for gate, apart in (("silu", OPS.silu_mul), ("gelu", OPS.gelu_tanh_mul)):
        check_same(quantized_rows(both, kind, False, gate), quantized_rows(apart(both), kind, False))


def test_a_norm_adds_up_terms() -> None:
    terms, residual = normal(3, 5, WIDTH, dtype=torch.bfloat16), normal(5, WIDTH, seed=2, dtype=torch.bfloat16)
    norm = normal(WIDTH, seed=3, dtype=torch.bfloat16), 1e-5
    normed, total = OPS.add_rms_norm(terms, residual, *norm)
    quants, kept = normed_rows((terms, residual), norm, torch.int8, False)
    assert torch.equal(kept, total)
    check_same(quants, quantized_rows(normed, torch.int8, False))


def test_int8_is_rounded_to_the_nearest() -> None:
    x = torch.tensor([[127.0, 2.5, 3.5, -2.5, 0.4, -126.6]], device=DEVICE)
    quants, scales = quantized_rows(x, torch.int8, False)
    assert quants.tolist() == [[127, 2, 4, -2, 0, -127]] and scales.tolist() == [[1.0]]


@pytest.mark.parametrize("name", interpret(CASES, FEW))
def test_a_matrix_takes_the_norm_and_the_gate_along(name: str) -> None:
    matrix = FewBitsMatrix(case(name), torch.bfloat16, False, False)
    stream = normal(5, WIDTH, dtype=torch.bfloat16), normal(5, WIDTH, seed=2, dtype=torch.bfloat16)
    norm, bias = (normal(WIDTH, seed=3, dtype=torch.bfloat16), 1e-5), normal(OUTPUTS, seed=4)
    normed, total = OPS.add_rms_norm(*stream, *norm)
    found, kept = matrix.add_norm_linear(stream, norm, bias, OPS)
    assert torch.equal(kept, total)
    check_near(found, matrix.linear(normed, bias))
    both = normal(5, 2 * WIDTH, seed=6, dtype=torch.bfloat16)
    assert matrix.takes_gate(5)
    found = matrix.gated(both, bias, False, True, OPS)
    check_near(found, matrix.linear_terms(OPS.silu_mul(both), bias))
    assert torch.equal(matrix.gated(both, bias, False, False, OPS), matrix.linear(OPS.silu_mul(both), bias))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("centred", [False, True])
def test_integers_of_checkpoints(bits: int, centred: bool) -> None:
    quants = torch.randint(0, 1 << bits, (16, 256), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    scales = torch.rand((16, 4), generator=torch.Generator().manual_seed(2)).to(torch.float16)
    zeros = 1 << (bits - 1) if centred else torch.randint(0, 1 << bits, (16, 4))
    found = of_numbers(ScaledNumbers(quants, scales, zeros, bits), torch.device(DEVICE))
    if bits == 8 and not centred:
        assert found is None
        return
    assert found is not None and (bits != 8 or found.weight_only)
    less = zeros if isinstance(zeros, int) else zeros.unsqueeze(2)
    expected = ((quants.view(16, 4, 64).float() - less) * scales.float().unsqueeze(2)).view(16, 256)
    assert torch.equal(found.widened().cpu(), expected)
    blocks = integer_blocks(quants, bits, zeros, scales)
    assert blocks is not None, "what blocks of 32 hold as well"


@pytest.mark.parametrize(("group", "cols", "bits"), [(48, 192, 4), (32, 96, 4), (16, 64, 4), (64, 256, 5)])
def test_numbers_that_no_kernel_reads_are_left(group: int, cols: int, bits: int) -> None:
    stored = ScaledNumbers(torch.zeros(2, cols, dtype=torch.uint8), torch.ones(2, cols // group), 8, bits)
    assert of_numbers(stored, torch.device(DEVICE)) is None


def test_numbers_are_cut_by_rows_and_columns() -> None:
    numbers = torch.arange(24 * 64).view(24, 64).to(torch.int8)
    scales = torch.arange(24 * 2).view(24, 2).float()
    stored = ScaledNumbers(numbers, scales, torch.arange(24 * 2).view(24, 2))
    cut = stored.of_rows([range(2, 4), range(10, 12)]).of_columns([range(32, 64)])
    assert cut is not None and isinstance(cut.zeros, torch.Tensor)
    rows = [2, 3, 10, 11]
    assert torch.equal(cut.numbers, numbers[rows, 32:]) and torch.equal(cut.scales, scales[rows, 1:])
    assert torch.equal(cut.zeros, torch.arange(24 * 2).view(24, 2)[rows, 1:])
    assert stored.of_columns([range(16, 48)]) is None, "a group would belong to two ranks"
    whole = ScaledNumbers(numbers, scales[:, :1]).of_columns([range(16, 48)])
    assert whole is not None and whole.scales.shape == (24, 1)


@pytest.mark.parametrize("name", interpret(CASES, FEW))
def test_a_row_that_is_alone_is_not_rounded(name: str) -> None:
    weight, x, bias = case(name), normal(1, WIDTH, dtype=torch.bfloat16), normal(OUTPUTS, seed=4)
    found = FewBitsMatrix(weight, torch.bfloat16, False, False).linear(x, bias)
    expected = (x.float() @ weight.widened().T + bias).to(torch.bfloat16)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))
    apart = FewBitsMatrix(weight, torch.bfloat16, True, False).linear(x, bias)
    assert not torch.equal(apart, found), "rounded where it must have the bits that it has among others"
