"""Blocks of GGUF files on Triton kernels: every type is the numbers that the `gguf` package has of it."""

from __future__ import annotations

from tests.helpers.triton_mode import DEVICE, interpret  # isort: skip - before triton

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from cadence.core.block_grids import FP4_VALUES
from cadence.kernels.triton.linear.gemv import Entry
from cadence.kernels.triton.lowbit.block_matrix import BlockMatrix, products_of
from cadence.kernels.triton.lowbit.block_planes import (
    FORMS,
    Planes,
    planes_of,
    planes_of_bytes,
    planes_of_fp4,
    stacked_planes,
)
from cadence.kernels.triton.lowbit.joined_matrix import JoinedMatrix
from cadence.kernels.triton.lowbit.span_launch import KINDS as SPAN_KINDS
from cadence.kernels.triton.lowbit.span_launch import Spans
from cadence.kernels.triton.ops import TritonOps
from cadence.models.quant.block_kinds import block_size, values_of_blocks
from tests.helpers.random_blocks import random_blocks
from tests.helpers.wide import mostly_wide, mostly_wide_rows

pytestmark = pytest.mark.device

OWN = ("BYTES", "FP4_16", "FP4_32")  # not of GGUF
KINDS = [kind for kind in FORMS if kind not in OWN]
SOME = ["Q4_K", "Q6_K", "Q5_1", "IQ2_XS", *OWN]  # of every way to group, with and without what is subtracted
FEW = ["Q4_K", "IQ2_XS", "FP4_16"]  # of them
SPANS = ["Q6_K", "IQ4_XS"] if DEVICE == "cpu" else ["Q4_K", "Q6_K", "Q5_1", "IQ4_XS"]
PRODUCTS = [(kind, rows, fixed) for kind in SOME for rows in (1, 3, 40, 70) for fixed in (False, True)]
ALWAYS = [(kind, 3, False) for kind in SOME] + [row for row in PRODUCTS if row[0] == "Q4_K"]
INTERPRETED = [("Q4_K", 1, False), ("Q4_K", 40, True), ("IQ2_XS", 3, False), ("BYTES", 3, True), ("FP4_32", 40, False)]
MORE = {"Q4_K": 4, "Q5_K": 4, "Q3_K": 4, "IQ4_XS": 2}  # bytes of 256 columns: a code of a scale takes one
ROWS = 20 if DEVICE == "cuda" else 6
WIDTH, OUTPUTS = (768, 72) if DEVICE == "cuda" else (512, 24)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def made(kind: str, rows: int = OUTPUTS, cols: int = WIDTH, seed: int = 1) -> tuple[Planes, torch.Tensor]:
    """And what it stands for, [rows, cols] float32."""
    form = FORMS[kind]
    group = 128 if kind == "BYTES" else form.group
    scales = normal(rows, cols // group, seed=seed + 1)
    if kind == "BYTES":
        numbers = normal(rows, cols, seed=seed).to(torch.float8_e4m3fn)
        expected = numbers.float().view(rows, -1, group) * scales.unsqueeze(2)
        return planes_of_bytes(numbers, scales), expected.view(rows, cols)
    if kind in OWN:
        codes = torch.randint(0, 16, (rows, cols), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        fp4 = planes_of_fp4(codes.to(DEVICE), scales)
        assert fp4 is not None and fp4.kind == kind
        numbers = torch.tensor(FP4_VALUES)[codes.int()].to(DEVICE) / 2
        return fp4, (numbers.view(rows, -1, group) * scales.unsqueeze(2)).view(rows, cols)
    data = random_blocks(kind, rows * cols // block_size(kind)[0], seed)
    found = planes_of(kind, torch.from_numpy(data).reshape(-1).to(DEVICE), rows, cols)
    assert found is not None
    return found, torch.from_numpy(dequantize(data, GGMLQuantizationType[kind]).reshape(rows, cols)).to(DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_gguf_package(kind: str) -> None:
    rows, cols = ROWS, 512
    planes, expected = made(kind, rows, cols)
    if DEVICE == "cpu":
        assert torch.equal(products_of(planes).values(torch.float32), expected)
    else:  # a product and a sum are rounded once
        torch.testing.assert_close(products_of(planes).values(torch.float32), expected, rtol=1e-6, atol=1e-5)
    held = {plane.data_ptr(): plane.nbytes for plane in planes.planes}
    columns, num_bytes = block_size(kind)
    most = MORE.get(kind, 0) * rows * cols // 256
    assert sum(held.values()) == rows * cols // columns * num_bytes + most, "not a byte more"


def test_every_type_of_the_gguf_package_has_a_decoder() -> None:
    from gguf.quants import _type_traits

    assert {kind.name for kind in _type_traits} - {"BF16", "Q4_0", "Q4_1"} == set(KINDS)


@pytest.mark.parametrize("kind", interpret(KINDS, ["Q5_1", "Q6_K", "IQ4_XS"]))
def test_one_row_and_some(kind: str) -> None:
    planes, expected = made(kind, rows=20, cols=512)
    matrix = BlockMatrix(planes, torch.float32, False, False)
    for rows in (1, 3):
        x, bias = normal(rows, 512), normal(20, seed=3)
        wanted = x @ expected.T + bias
        near = 1e-5 * float((x.abs() @ expected.abs().T).max())
        torch.testing.assert_close(matrix.linear(x, bias), wanted, rtol=1e-4, atol=near)


@pytest.mark.parametrize(
    ("kind", "rows", "fixed"), mostly_wide_rows(PRODUCTS, INTERPRETED if DEVICE == "cpu" else ALWAYS)
)
def test_products(kind: str, rows: int, fixed: bool) -> None:
    planes, expected = made(kind)
    matrix = BlockMatrix(planes, torch.float32, fixed, False)
    x, bias = normal(rows, WIDTH, seed=rows), normal(OUTPUTS, seed=9)
    near = 1e-5 * float((x.abs() @ expected.abs().T).max())
    torch.testing.assert_close(matrix.linear(x, bias), x @ expected.T + bias, rtol=1e-4, atol=near)
    torch.testing.assert_close(matrix.logits(x), x @ expected.T, rtol=1e-4, atol=near)


@pytest.mark.parametrize(
    "kind", mostly_wide([kind for kind in SOME if kind in SPAN_KINDS], FEW[:1] if DEVICE == "cpu" else FEW)
)
def test_one_token_takes_the_norm_and_the_gate_along(kind: str) -> None:
    """In whole numbers; on a GPU with numbers of 16 bits, which the interpreter does not add up as a GPU does."""
    outputs = OUTPUTS if DEVICE == "cuda" else 8
    planes, expected = made(kind, outputs)
    dtype, error = (torch.bfloat16, 2e-2) if DEVICE == "cuda" else (torch.float32, 1e-3)
    stream = normal(1, WIDTH, seed=4).to(dtype), normal(1, WIDTH, seed=5).to(dtype)
    norm, bias = ((normal(WIDTH, seed=6) / expected.abs().max()).to(dtype), 1e-5), normal(outputs, seed=7)
    total = (stream[0] + stream[1]).float()
    normed = total / torch.sqrt((total**2).mean() + norm[1]) * norm[0].float()
    wanted = normed @ expected.T + bias
    found, kept = Spans(planes).one_row(stream[0], bias, Entry(stream[1], *norm), "", False)
    torch.testing.assert_close(found.float(), wanted, rtol=error, atol=2 * error)
    torch.testing.assert_close(kept.float(), total)
    gate, up = wanted.chunk(2, dim=1)
    found, kept = Spans(planes).one_row(stream[0], bias, Entry(stream[1], *norm), "silu", False)
    torch.testing.assert_close(found.float(), torch.nn.functional.silu(gate) * up, rtol=error, atol=10 * error)
    torch.testing.assert_close(kept.float(), total)


@pytest.mark.parametrize("kind", mostly_wide(list(SPAN_KINDS), SPANS))
def test_one_row_in_whole_numbers(kind: str) -> None:
    planes, expected = made(kind, ROWS, 512)
    dtype, error = (torch.bfloat16, 1e-2) if DEVICE == "cuda" else (torch.float32, 1e-5)
    x, bias = normal(1, 512, seed=3).to(dtype), normal(ROWS, seed=9)
    near = error * float((x.float().abs() @ expected.abs().T).max())
    found = Spans(planes).one_row(x, bias, None, "", False)[0]
    torch.testing.assert_close(found.float(), x.float() @ expected.T + bias, rtol=error, atol=near)


@pytest.mark.parametrize("kind", mostly_wide(SOME, FEW[:1] if DEVICE == "cpu" else FEW))
def test_rows_of_a_fixed_product_have_their_bits(kind: str) -> None:
    matrix = BlockMatrix(made(kind)[0], torch.float32, True, False)
    x = normal(70, WIDTH)
    whole = matrix.linear(x, None)
    for some in (slice(0, 1), slice(3, 9), slice(0, 17), slice(10, 50)):
        assert torch.equal(matrix.linear(x[some].contiguous(), None), whole[some])


@pytest.mark.parametrize("kind", interpret(SOME, FEW))
def test_rows_are_looked_up(kind: str) -> None:
    planes, _ = made(kind)
    matrix = BlockMatrix(planes, torch.float32, False, False)
    whole = products_of(planes).values(torch.float32)
    ids = torch.tensor([5, 0, 5, OUTPUTS - 1], dtype=torch.int32, device=DEVICE)
    assert torch.equal(matrix.lookup(ids, 2.0), whole[ids.long()] * 2.0)
    assert torch.equal(matrix.values(4, 3), whole[4:7])


@pytest.mark.parametrize("kind", interpret(["Q5_K", "IQ2_XXS"], ["Q5_K"]))
def test_parts_are_stacked(kind: str) -> None:
    (first, above), (second, below) = made(kind, 8), made(kind, 24, seed=5)
    both = stacked_planes([first, second])
    apart = [products_of(part).values(torch.float32) for part in (first, second)]
    assert torch.equal(products_of(both).values(torch.float32), torch.cat(apart))
    torch.testing.assert_close(torch.cat(apart), torch.cat([above, below]), rtol=1e-6, atol=1e-5)
    shared = {plane.data_ptr() for plane in both.planes}
    assert len(shared) == len({(start, stop) for start, stop, _ in first.form.fields}), "views stay views"


def test_terms_add_up() -> None:
    planes, expected = made("Q4_K", 64, 1024)
    x, bias = normal(5, 1024), normal(64, seed=3)
    terms = BlockMatrix(planes, torch.float32, False, False).linear_terms(x, bias)
    assert terms.shape == (4, 5, 64)
    near = 1e-5 * float((x.abs() @ expected.abs().T).max())
    torch.testing.assert_close(terms.sum(dim=0), x @ expected.T + bias, rtol=1e-4, atol=near)
    whole = BlockMatrix(planes, torch.float32, True, False).linear_terms(x, bias)
    assert whole.shape == (5, 64), "of a fixed product nothing is split"


def test_a_large_matrix_is_widened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    planes, expected = made("Q6_K")
    matrix, x, bias = BlockMatrix(planes, torch.float32, False, False), normal(70, WIDTH), normal(OUTPUTS)
    monkeypatch.setattr("cadence.kernels.triton.lowbit.block_matrix._MOST_WIDENED", OUTPUTS * 5 // 12 * WIDTH)
    near = 1e-5 * float((x.abs() @ expected.abs().T).max())
    torch.testing.assert_close(matrix.linear(x, bias), x @ expected.T + bias, rtol=1e-4, atol=near)


def test_types_without_blocks_are_left() -> None:
    assert planes_of("F16", torch.zeros(512, dtype=torch.uint8), 1, 256) is None
    assert planes_of("Q6_K", torch.zeros(210, dtype=torch.uint8), 2, 128) is None


@pytest.mark.parametrize("method", interpret(["gguf", "checkpoint"], ["gguf"]))
def test_a_packer_keeps_blocks_and_joins_kinds(method: str) -> None:
    packer = TritonOps(packs=True).packer(method, torch.float32, torch.device(DEVICE))
    assert packer is not None
    kinds = ["Q4_K", "Q4_K", "Q6_K", "Q4_0", "F32"]
    parts, expected = [], []
    for number, kind in enumerate(kinds):
        data = random_blocks(kind, 8 * WIDTH // block_size(kind)[0], number)
        raw = torch.from_numpy(data).reshape(-1)
        expected.append(values_of_blocks(kind, raw, (8, WIDTH)).to(DEVICE))
        part = packer.pack_blocks(kind, raw, 8, WIDTH)
        assert (part is None) == (kind == "F32")
        parts.append(packer.pack_values(expected[-1], True) if part is None else part)
    matrix, whole = packer.stack(parts), torch.cat(expected)
    assert isinstance(matrix, JoinedMatrix) and (matrix.rows, matrix.cols) == (40, WIDTH)
    assert isinstance(packer.stack(parts[:2]), BlockMatrix)
    torch.testing.assert_close(matrix.values(5, 30), whole[5:35], rtol=1e-6, atol=1e-5)
    ids = torch.tensor([0, 17, 39, 8, 31], dtype=torch.int32, device=DEVICE)
    torch.testing.assert_close(matrix.lookup(ids, 1.0), whole[ids.long()], rtol=1e-6, atol=1e-5)
    x, bias = normal(3, WIDTH), normal(40, seed=2)
    near = 1e-5 * float((x.abs() @ whole.abs().T).max())
    torch.testing.assert_close(matrix.linear(x, bias), x @ whole.T + bias, rtol=1e-4, atol=near)
    torch.testing.assert_close(matrix.logits(x), x @ whole.T, rtol=1e-4, atol=near)


def test_random_blocks_are_any_bits() -> None:
    assert len(np.unique(random_blocks("Q4_K", 64, 1)[:, 16:])) == 256
