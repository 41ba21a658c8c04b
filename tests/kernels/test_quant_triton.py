"""Matrices of few bits on Triton kernels: what they multiply by is what they hold, and that is near what was given."""

from __future__ import annotations

from tests.helpers.triton_mode import DEVICE, interpret, interpret_each_once  # isort: skip - before triton

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.triton.lowbit.checkpoint_numbers import of_numbers
from cadence.kernels.triton.lowbit.few_bits import Stored, as_fp8, as_int4, as_int8, of_blocks, stacked
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix
from cadence.kernels.triton.lowbit.few_bits_rows import widened
from cadence.kernels.triton.lowbit.joined_matrix import JoinedMatrix
from cadence.kernels.triton.lowbit.quantized_rows import quantized_rows
from cadence.kernels.triton.ops import TritonOps
from cadence.models.quant.blocks import integer_blocks
from tests.helpers.quantized_writers import bnb_table

pytestmark = pytest.mark.device

MAKERS = {"fp8": as_fp8, "int8": as_int8, "int4": as_int4}
ERRORS = {"fp8": 0.04, "int8": 0.01, "int4": 0.13}  # of a matrix of normal values, relative
OPS = TritonOps()
WIDTH, OUTPUTS = 320, 96 if DEVICE == "cuda" else 72


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def grouped_int4(group: int) -> Stored:
    """With zeros of its own, some groups of zeros only among it."""
    quants = torch.randint(0, 16, (OUTPUTS, WIDTH), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    scales = torch.rand(OUTPUTS, WIDTH // group).to(torch.float16)
    scales[3, 1] = 0
    zeros = torch.randint(0, 16, (OUTPUTS, WIDTH // group))
    found = integer_blocks(quants, 4, zeros, scales)
    assert found is not None and found[0] == "Q4_Z"
    stored = of_blocks(*found, OUTPUTS, WIDTH)
    assert stored is not None and stored.group == group
    expected = (quants.view(OUTPUTS, -1, group).float() - zeros.unsqueeze(2)) * scales.float().unsqueeze(2)
    assert torch.equal(stored.widened(), expected.view(OUTPUTS, WIDTH))
    return stored.to(torch.device(DEVICE))


def of_table(kind: str, group: int) -> Stored:
    """Codes of bitsandbytes; their numbers are the table's, bit for bit."""
    table = bnb_table(kind)
    codes = torch.randint(0, 16, (OUTPUTS, WIDTH), generator=torch.Generator().manual_seed(4), dtype=torch.uint8)
    scales = torch.rand(OUTPUTS, WIDTH // group, generator=torch.Generator().manual_seed(5))
    scales[3, 0] = 0
    stored = of_numbers(ScaledNumbers(codes, scales, bits=4, table=table), torch.device("cpu"))
    assert isinstance(stored, Stored) and stored.group == group
    expected = table[codes.int()].view(OUTPUTS, -1, group) * scales.unsqueeze(2)
    assert torch.equal(stored.widened(), expected.view(OUTPUTS, WIDTH))
    return stored.to(torch.device(DEVICE))


def in_blocks() -> Stored:
    data = torch.from_numpy(quantize(normal(OUTPUTS, WIDTH, seed=2).cpu().numpy(), GGMLQuantizationType.Q8_0))
    blocks = of_blocks("Q8_0", data.view(-1), OUTPUTS, WIDTH)
    assert blocks is not None
    return blocks.to(torch.device(DEVICE))


OF_FILES: dict[str, Callable[[], Stored]] = {
    "zeros of 64": lambda: grouped_int4(64),
    "zeros of 32": lambda: grouped_int4(32),
    "Q8_0": in_blocks,
    "nf4": lambda: of_table("nf4", 64),
    "fp4": lambda: of_table("fp4", WIDTH),
}
CASES = [*MAKERS, *OF_FILES]


@cache
def case(name: str) -> Stored:
    return MAKERS[name](normal(OUTPUTS, WIDTH, seed=2)) if name in MAKERS else OF_FILES[name]()


@pytest.mark.parametrize("name", MAKERS)
def test_values_are_near(name: str) -> None:
    weight = normal(OUTPUTS, WIDTH, seed=5)
    weight[7] = 0
    stored = MAKERS[name](weight)
    error = (stored.widened() - weight).norm() / weight.norm()
    assert error < ERRORS[name] and not stored.widened()[7].any()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_files_keep_their_numbers(kind: str) -> None:
    kind_of = GGMLQuantizationType[kind]
    data = quantize(np.random.default_rng(1).normal(size=(8, 256)).astype(np.float32), kind_of)
    stored = of_blocks(kind, torch.from_numpy(data).view(-1), 8, 256)
    assert stored is not None
    expected = torch.from_numpy(dequantize(data, kind_of))
    torch.testing.assert_close(stored.widened(), expected, rtol=0, atol=0 if kind != "Q4_1" else 1e-6)


def test_kinds_without_a_kernel_are_left() -> None:
    assert of_blocks("Q6_K", torch.zeros(210, dtype=torch.uint8), 1, 256) is None
    assert of_blocks("Q4_0", torch.zeros(18, dtype=torch.uint8), 1, 32) is None


@pytest.mark.parametrize(("name", "rows", "fixed"), interpret_each_once(CASES, [1, 3, 40], [False, True]))
def test_products(name: str, rows: int, fixed: bool) -> None:
    stored = case(name)
    matrix = FewBitsMatrix(stored, torch.float32, fixed, False)
    x, bias = normal(rows, WIDTH, seed=rows), normal(OUTPUTS, seed=9)
    expected = x @ stored.widened().T
    # One row times four bits: x has 16 bits, of the largest of 32 columns.
    fine = (
        1e-3 if rows > 1 or fixed or not stored.is_four else 1e-5 * float(x.norm() * stored.widened().norm(dim=1).max())
    )
    torch.testing.assert_close(matrix.linear(x, bias), expected + bias, rtol=1e-4, atol=fine)
    torch.testing.assert_close(matrix.logits(x), expected, rtol=1e-4, atol=fine)


@pytest.mark.parametrize("name", interpret(CASES, ["int8", "zeros of 64"]))
def test_one_token_takes_the_norm_and_the_gate_along(name: str) -> None:
    stored = case(name)
    matrix = FewBitsMatrix(stored, torch.float32, False, False)
    stream, norm = (normal(1, WIDTH, seed=4), normal(1, WIDTH, seed=5)), (normal(WIDTH, seed=6), 1e-5)
    bias = normal(OUTPUTS, seed=7)
    total = stream[0] + stream[1]
    normed = total / torch.sqrt((total**2).mean() + norm[1]) * norm[0]
    expected = normed @ stored.widened().T + bias
    found, kept = matrix.add_norm_linear(stream, norm, bias, OPS)
    fine = 2e-3 if not stored.is_four else 1e-5 * float(normed.norm() * stored.widened().norm(dim=1).max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=fine)
    torch.testing.assert_close(kept, total)
    gate, up = expected.chunk(2, dim=1)
    found, kept = matrix.add_norm_gated(stream, norm, bias, False, OPS)
    torch.testing.assert_close(
        found, torch.nn.functional.silu(gate) * up, rtol=1e-3, atol=fine * float(expected.abs().max())
    )
    torch.testing.assert_close(kept, total)


@pytest.mark.parametrize("name", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float16] if DEVICE == "cpu" else [torch.float16, torch.bfloat16])
def test_several_rows_meet_the_tables_numbers(name: str, dtype: torch.dtype) -> None:
    """Rows with a single 1 give back columns: numbers of the table, scaled in float32. On a GPU they are looked up in
    float16; those with few scales in the type of the rows, everywhere."""
    stored = case(name)
    looked_up = dtype if stored.group > 64 else torch.float32 if DEVICE == "cpu" else torch.float16
    ones = torch.eye(WIDTH, device=DEVICE, dtype=dtype)[7:WIDTH:9]
    found = FewBitsMatrix(stored, dtype, True, False).linear(ones, None)
    numbers = replace(stored, scales=torch.ones_like(stored.scales)).widened().to(looked_up).float()
    expected = (numbers.view(OUTPUTS, -1, stored.group) * stored.scales.unsqueeze(2)).view(OUTPUTS, WIDTH)
    assert torch.equal(found, expected.to(dtype).T[7:WIDTH:9])


@pytest.mark.parametrize("bad", interpret([float("nan"), float("inf")], [float("inf")]))
def test_what_is_no_number_is_not_hidden(bad: float) -> None:
    x = normal(1, WIDTH)
    x[0, 70] = bad
    for name in ("int4", "zeros of 32", "nf4") if DEVICE == "cuda" else ("int4",):
        assert not FewBitsMatrix(case(name), torch.float32, False, False).linear(x, None).isfinite().any()


@pytest.mark.parametrize("name", interpret(CASES, ["int8", "nf4"]))
def test_rows_of_a_fixed_product_have_their_bits(name: str) -> None:
    matrix = FewBitsMatrix(case(name), torch.float32, True, False)
    x = normal(20, WIDTH)
    whole = matrix.linear(x, None)
    for some in (slice(0, 1), slice(3, 9), slice(0, 17)):
        assert torch.equal(matrix.linear(x[some].contiguous(), None), whole[some])


@pytest.mark.parametrize("name", interpret(CASES, ["Q8_0", "zeros of 32", "nf4"]))
def test_rows_are_looked_up_and_widened(name: str) -> None:
    stored = case(name)
    matrix = FewBitsMatrix(stored, torch.float32, False, False)
    ids = torch.tensor([5, 0, 5, OUTPUTS - 1], dtype=torch.int32, device=DEVICE)
    assert torch.equal(matrix.lookup(ids, 2.0), stored.widened()[ids.long()] * 2.0)
    assert torch.equal(matrix.values(4, 3), stored.widened()[4:7])
    torch.testing.assert_close(widened(stored, torch.float32), stored.widened(), rtol=1e-6, atol=1e-6)


def test_activations_in_eight_bits() -> None:
    x = normal(5, WIDTH)
    x[2] = 0
    quants, scales = quantized_rows(x, torch.float8_e4m3fn, False)
    back = quants.float() * scales
    most = 0.04 if DEVICE == "cuda" else 0.08  # the interpreter cuts what the GPU rounds
    assert (back - x).norm() / x.norm() < most and not back[2].any()


def test_parts_of_one_input_are_stacked() -> None:
    first, second = as_int4(normal(16, WIDTH)), grouped_int4(64)
    both = stacked([first, second]) if first.group == second.group else second
    if both is not second:
        assert torch.equal(both.widened(), torch.cat([first.widened(), second.widened()]))
    packer = TritonOps(packs=True).packer("int4", torch.float32, torch.device(DEVICE))
    assert packer is not None
    mixed = packer.stack([first, as_int8(normal(16, WIDTH, seed=8))])
    assert isinstance(mixed, JoinedMatrix) and mixed.rows == 32
    x = normal(3, WIDTH)
    torch.testing.assert_close(mixed.linear(x, None)[:, :16], x @ first.widened().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", interpret(["none", "fp8", "int8", "int4", "gguf"], ["none", "fp8", "int4"]))
def test_a_packer_takes_what_loaders_bring(method: str) -> None:
    packer = TritonOps(packs=True).packer(method, torch.float32, torch.device(DEVICE))
    assert packer is not None and packer.keeps_blocks == (method == "gguf")
    values, order = normal(OUTPUTS, WIDTH), torch.randperm(WIDTH, generator=torch.Generator().manual_seed(1))
    transposed = values.cpu().T.contiguous().T
    matrix = packer.stack([packer.pack_values(transposed, True)])
    picked = packer.stack([packer.pack_values(values.cpu()[:, order], True)], order)
    assert (matrix.rows, matrix.cols) == (picked.rows, picked.cols) == (OUTPUTS, WIDTH)
    x, ids = normal(3, WIDTH), torch.tensor([4, 1], dtype=torch.int32, device=DEVICE)
    for each in (matrix, picked):
        shown = each.values(0, OUTPUTS)
        assert (shown - values).norm() / values.norm() < 0.13
        torch.testing.assert_close(each.linear(x, None), x @ shown.T, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(each.lookup(ids, 1.0), shown[ids.long()])
    assert packer.pack_blocks("F32", torch.zeros(1024, dtype=torch.uint8), 1, 256) is None


@pytest.mark.parametrize("name", interpret(MAKERS, ["int4"]))
def test_terms_add_up(name: str) -> None:
    stored = MAKERS[name](normal(128, 1024))
    x, bias = normal(5, 1024), normal(128, seed=3)
    terms = FewBitsMatrix(stored, torch.float32, False, False).linear_terms(x, bias)
    assert terms.shape == (8, 5, 128)
    torch.testing.assert_close(terms.sum(dim=0), x @ stored.widened().T + bias, rtol=1e-4, atol=1e-3)
    added = FewBitsMatrix(stored, torch.float32, False, False).linear(x, bias)
    torch.testing.assert_close(added, terms.sum(dim=0))
    whole = FewBitsMatrix(stored, torch.float32, True, False).linear_terms(x, bias)
    assert whole.shape == (5, 128), "of a fixed product nothing is split"
