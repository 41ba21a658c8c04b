"""Single matrices: scales, rounding, errors made up for, and what the readers of quantised checkpoints make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence.config.hf import HFConfig
from cadence.config.quantized import read_quantized
from cadence.core.errors import WeightsError
from cadence.models.quant.read import read_matrix
from cadence.models.quant.tensors import ModuleTensors
from cadence.models.quant.words import num_words, packed, unpacked
from cadence.models.quantize.choose import choose_grid
from cadence.models.quantize.compensate import compensated
from cadence.models.quantize.formats import FORMATS, WeightFormat, find_format
from cadence.models.quantize.matrix import QuantizedMatrix, quantized
from cadence.models.quantize.stored import Tensors
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

TYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64", torch.int32: "I32", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip


class HeldTensors:
    """`StoredTensors`."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def stored_type(self, name: str) -> str:
        return TYPES[self._tensors[name].dtype]

    def stored(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def read_back(matrix: QuantizedMatrix, form: WeightFormat) -> torch.Tensor:
    """By the files' reader, as the configuration beside it says."""
    raw = {"quantization_config": form.section(["lm_head"])}
    found = read_quantized(HFConfig("LlamaForCausalLM", raw, "m", Path("config.json")))
    assert found is not None
    stored = found.stored_as("model.layers.0.mlp.up_proj")
    assert stored is not None
    names = {part: part for part in matrix.tensors}
    return read_matrix(ModuleTensors("m", names, HeldTensors(matrix.tensors), "here"), stored).values()


@st.composite
def matrices(draw: st.DrawFn) -> tuple[torch.Tensor, WeightFormat, torch.dtype]:
    name = draw(st.sampled_from(sorted(FORMATS)))
    group = draw(st.sampled_from(FORMATS[name].groups)) if FORMATS[name].groups else 0
    form = find_format(name, group)
    cols = draw(st.integers(1, 4)) * (form.group or draw(st.sampled_from([1, 7, 32, 130])))
    rows = draw(st.sampled_from([1, 2, 5, 8, 131]))
    pick = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    weight = torch.randn(rows, cols, generator=pick) * 2.0 ** draw(st.integers(-12, 6))
    if draw(st.booleans()):
        weight[draw(st.integers(0, rows - 1))] = 0.0
    if draw(st.booleans()):
        weight[:, draw(st.integers(0, cols - 1))] *= 50.0
    return weight, form, draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))


@given(matrices(), st.booleans())
@examples(25, 150)
def test_what_is_written_is_read_back(case: tuple[torch.Tensor, WeightFormat, torch.dtype], calibrates: bool) -> None:
    weight, form, dtype = case
    inputs = torch.randn(64, weight.shape[1], generator=torch.Generator().manual_seed(1))
    (matrix,) = quantized([weight], form, dtype, inputs.t() @ inputs if calibrates else None)
    found = read_back(matrix, form)
    assert found.shape == weight.shape
    assert torch.equal(found, matrix.values.to(found.dtype))


@given(matrices())
@examples(20, 100)
def test_nothing_is_further_off_than_a_step(case: tuple[torch.Tensor, WeightFormat, torch.dtype]) -> None:
    """Where the range covers every entry: half a step, of numbers whose steps grow with them."""
    weight, form, dtype = case
    (matrix,) = quantized([weight], form, dtype)
    height, width = form.cell(weight.shape[1])
    top = torch.zeros_like(weight)
    for row in range(0, weight.shape[0], height):
        for col in range(0, weight.shape[1], width):
            cell = (slice(row, row + height), slice(col, col + width))
            own = weight[cell]
            top[cell] = own.abs().max() if form.symmetric else own.max().clamp(min=0) - own.min().clamp(max=0)
    part = {("int", 4): 1 / 7, ("int", 8): 1 / 127, ("float", 8): 1 / 16, ("float", 4): 1 / 2}[form.kind, form.bits]
    clipped = 0.41 if len(form.ranges) > 1 else 0.0  # of the range that may have been given up
    least = 1e-6 if dtype is torch.float16 else 1e-30
    assert bool(((matrix.values - weight).abs() <= (part + clipped) * top + least).all())


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.pays])
def test_errors_of_inputs_that_are_alike_are_made_up_for(name: str) -> None:
    pick = torch.Generator().manual_seed(3)
    weight = torch.randn(64, 128, generator=pick)
    mix = torch.randn(24, 128, generator=pick)
    seen, held_out = (torch.randn(n, 24, generator=pick) @ mix + 0.1 for n in (512, 256))
    form = find_format(name)
    errors = []
    for hessian in (None, seen.t() @ seen):
        (matrix,) = quantized([weight], form, torch.bfloat16, hessian)
        errors.append(float((held_out @ (matrix.values - weight).t()).square().sum()))
    assert errors[1] < 0.3 * errors[0]


def test_each_column_is_rounded_from_where_the_least_error_has_it() -> None:
    """By definition: with the columns P rounded before to Q, the rest is W_R - (Q_P - W_P) H_PR H_RR^-1."""
    pick = torch.Generator().manual_seed(8)
    weight, inputs = torch.randn(8, 160, generator=pick), torch.randn(400, 160, generator=pick)
    hessian = (inputs + inputs @ torch.randn(160, 160, generator=pick) / 6).t() @ inputs
    hessian = hessian @ hessian.t() / 400
    grid = choose_grid(weight, find_format("W4A16", 32), torch.bfloat16, hessian.diagonal())
    order = torch.argsort(hessian.diagonal(), descending=True)
    damped = (hessian + torch.diag(torch.full((160,), 0.01 * float(hessian.diagonal().mean())))).double()
    expected, wide = weight.double().clone(), weight.double()
    for place, column in enumerate(order.tolist()):
        done, left = order[:place], order[place:]
        change = (expected[:, done] - wide[:, done]) @ damped[done][:, left] @ damped[left][:, left].inverse()
        target = weight.clone()
        target[:, left] = (wide[:, left] - change).float()
        expected[:, column] = grid.nearest(target)[:, column].double()
    found = compensated(weight, grid, hessian)
    assert float((found != expected.float()).float().mean()) < 0.01  # one that lies in the middle may go elsewhere


def test_columns_that_have_nothing_in_common_are_rounded_each_by_itself() -> None:
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(4))
    form = find_format("W4A16", 32)
    grid = choose_grid(weight, form, torch.bfloat16, torch.ones(128))
    hessian = torch.diag(torch.arange(1.0, 129.0))
    assert torch.equal(compensated(weight, grid, hessian), grid.nearest(weight))


def test_what_lies_on_the_grid_stays_there() -> None:
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(4))
    inputs = torch.randn(256, 128, generator=torch.Generator().manual_seed(5))
    grid = choose_grid(weight, find_format("W4A16_ASYM", 32), torch.bfloat16, torch.ones(128))
    values = grid.nearest(weight)
    assert torch.equal(compensated(values, grid, inputs.t() @ inputs), values)


def test_inputs_that_never_come_do_no_harm() -> None:
    """A column that is always zero, and fewer inputs than columns."""
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(4))
    inputs = torch.randn(20, 128, generator=torch.Generator().manual_seed(5))
    inputs[:, 7] = 0.0
    for hessian in (inputs.t() @ inputs, torch.zeros(128, 128)):
        (matrix,) = quantized([weight], find_format("W4A16"), torch.bfloat16, hessian)
        assert float((matrix.values - weight).abs().max()) < 3.0
    with pytest.raises(WeightsError, match="not finite"):
        quantized([weight], find_format("W4A16"), torch.bfloat16, torch.full((128, 128), torch.nan))


def test_parts_of_one_matrix_share_what_is_for_the_whole() -> None:
    """As kernels have it that multiply them as one."""
    pick = torch.Generator().manual_seed(6)
    parts = [torch.randn(8, 64, generator=pick), 9.0 * torch.randn(24, 64, generator=pick)]
    first, second = quantized(parts, find_format("NVFP4A16"), torch.bfloat16)
    assert torch.equal(first.tensors["weight_global_scale"], second.tensors["weight_global_scale"])
    assert [tuple(each.values.shape) for each in (first, second)] == [(8, 64), (24, 64)]
    together = quantized([torch.cat(parts)], find_format("NVFP4A16"), torch.bfloat16)[0]
    assert torch.equal(together.values, torch.cat([first.values, second.values]))


@given(st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(1, 70), st.integers(0, 2**32))
@examples(20, 60)
def test_words_hold_what_was_put_in(bits: int, rows: int, count: int, seed: int) -> None:
    pick = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 1 << bits, (rows, count), dtype=torch.uint8, generator=pick)
    words = packed(numbers, bits)
    assert words.dtype is torch.int32 and words.shape == (rows, num_words(count, bits))
    assert torch.equal(unpacked(words, bits)[:, :count], numbers)
