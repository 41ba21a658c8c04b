"""Layer norms, activations, sums, soft caps and scaled embeddings in C, held to plain torch; rows stand alone."""

from __future__ import annotations

import pytest
import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows
from cadence.kernels.interface.ops import Activation
from tests.helpers.kernel_checks import REFERENCE, assert_close, check_speech_rules, check_token_mask
from tests.helpers.packing import pack_bf16, pack_f32

pytestmark = pytest.mark.device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [1, 7, 16, 64, 131]


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    return CpuOps(Calls(2))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norms(ops: CpuOps, width: int, dtype: torch.dtype) -> None:
    x, residual = random(5, width, dtype=dtype) * 3 + 1, random(5, width, dtype=dtype, seed=1)
    weight, bias = random(width, dtype=dtype, seed=2), random(width, dtype=dtype, seed=3)
    for affine in ((weight, bias), (weight, None), (None, None)):
        assert_close(ops.layer_norm(x, *affine, 1e-5), REFERENCE.layer_norm(x, *affine, 1e-5))
        ours, reference = (target.add_layer_norm((x, residual), *affine, 1e-5) for target in (ops, REFERENCE))
        assert torch.equal(ours[1], reference[1])
        assert_close(ours[0], reference[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norms_of_heads(ops: CpuOps, width: int, dtype: torch.dtype) -> None:
    heads = (random(5, 4 * width, dtype=dtype) * 3 + 1).view(5, 4, width)[:, 1:]  # a part of each token
    weight = random(3, width, dtype=dtype, seed=2)
    ours = ops.head_layer_norm(heads, weight, 1e-5)
    assert_close(ours, REFERENCE.head_layer_norm(heads, weight, 1e-5))
    apart = [REFERENCE.layer_norm(heads[:, head], weight[head], None, 1e-5) for head in range(3)]
    assert_close(ours, torch.stack(apart, dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", Activation)
def test_activations(ops: CpuOps, kind: Activation, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-12, 12, 2001), torch.tensor([0.0, -0.0, 1e-4, -1e-4, 300.0, -300.0])]).to(dtype)
    ours, reference = ops.activate(x[None], kind), REFERENCE.activate(x[None], kind)
    assert_close(ours, reference)
    wide = torch.randn((3, 2 * 77), generator=torch.Generator().manual_seed(1)).to(dtype)[:, 40:117]  # a part of rows
    assert_close(ops.activate(wide, kind), REFERENCE.activate(wide, kind))


def test_gelu_keeps_its_digits_far_out(ops: CpuOps) -> None:
    """Where Phi(x) is tiny the difference 1 + erf would have none left."""
    x = torch.linspace(-7, -1, 200)[None]
    exact = torch.nn.functional.gelu(x.double())
    error = ((ops.activate(x, Activation.GELU).double() - exact) / exact).abs().max()
    assert error < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_and_caps(ops: CpuOps, dtype: torch.dtype) -> None:
    x, y = random(6, 45, dtype=dtype), random(6, 45, dtype=dtype, seed=9)
    assert torch.equal(ops.add(x, y), REFERENCE.add(x, y))
    for bias in (random(45, dtype=dtype), random(45)):
        assert torch.equal(ops.add_bias(x, bias), REFERENCE.add_bias(x, bias))
    table, ids = random(20, 45, dtype=dtype), torch.tensor([0, 17, 3, 3, 9, 1])
    assert torch.equal(ops.add_rows(x, table, ids, 2), REFERENCE.add_rows(x, table, ids, 2))
    parts = random(6, 70, dtype=dtype)[:, 9:54]  # strided
    assert torch.equal(ops.scale_rows(parts, random(20), ids), REFERENCE.scale_rows(parts, random(20), ids))
    x[0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    torch.testing.assert_close(ops.clip(x, 0.6), REFERENCE.clip(x, 0.6), rtol=0, atol=0, equal_nan=True)
    x[0, :3] = 1.0
    capped = ops.softcap(x * 40, 30.0)
    assert capped.dtype is torch.float32
    assert_close(capped, REFERENCE.softcap(x * 40, 30.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 3001, 50_000])
def test_masks_bar_what_the_reference_bars(ops: CpuOps, vocab_size: int, dtype: torch.dtype) -> None:
    check_token_mask(ops, vocab_size, dtype, "cpu")


@pytest.mark.parametrize("vocab_size", [64, 3001, 51_865])
def test_rules_of_speech_bar_what_the_reference_bars(ops: CpuOps, vocab_size: int) -> None:
    check_speech_rules(ops, vocab_size, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_embeddings_and_products_in_every_type(ops: CpuOps, dtype: torch.dtype) -> None:
    """Rows come as stored, times a scale; products take and give the activations' type."""
    weight, ids = random(40, 64, dtype=torch.bfloat16), torch.tensor([3, 0, 39], dtype=torch.int32)
    for pack in (pack_bf16, pack_f32):
        packed = PackedRows([pack(weight)], dtype)
        assert torch.equal(ops.packed.lookup(ids, packed, 1.0), weight[ids].to(dtype))
        assert torch.equal(ops.packed.lookup(ids, packed, 11.3125), weight[ids].to(dtype) * 11.3125)
        x, bias = random(4, 64, dtype=dtype), random(40)
        assert_close(ops.packed.linear(x, packed, bias), (x.double() @ weight.double().T + bias).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_stand_alone(ops: CpuOps, dtype: torch.dtype) -> None:
    """Bits of a row depend neither on the number of rows nor on its place; 700 rows are shared among threads."""
    rows, width = 700, 83
    x, residual, table = (random(rows, width, dtype=dtype, seed=seed) for seed in range(3))
    weight, bias = random(width, dtype=dtype), random(width, dtype=dtype, seed=5)
    ids = torch.arange(rows).flip(0)

    def everything(part: slice) -> list[torch.Tensor]:
        a, b = x[part], residual[part]
        return [
            ops.layer_norm(a, weight, bias, 1e-5),
            *ops.add_layer_norm((a, b), weight, bias, 1e-5),
            ops.add(a, b),
            ops.add_rows(a, table, ids[part], 0),
            ops.softcap(a, 3.0),
            *[ops.activate(a, kind) for kind in Activation],
            *[gate(torch.cat([a, b], dim=1)) for gate in (ops.silu_mul, ops.gelu_tanh_mul)],
        ]

    together = everything(slice(0, rows))
    for part in (slice(0, 1), slice(699, 700), slice(340, 343), slice(100, 600)):
        for alone, among in zip(everything(part), together, strict=True):
            assert torch.equal(alone, among[part])


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_stand_alone(ops: CpuOps, dtype: torch.dtype) -> None:
    """Bits do not depend on whether an element lies in many whole vectors, in one, or in the part of one."""
    x, up = random(3, 83, dtype=dtype) * 4, random(3, 83, dtype=dtype, seed=1)

    def everything(width: int) -> list[torch.Tensor]:
        a, pair = x[:, :width], torch.cat([x[:, :width], up[:, :width]], dim=1)
        maps = [ops.activate(a, kind) for kind in Activation]
        return [*maps, ops.softcap(a, 3.0), ops.silu_mul(pair), ops.gelu_tanh_mul(pair)]

    whole = everything(83)
    for width in (1, 3, 17, 34):
        for part, among in zip(everything(width), whole, strict=True):
            assert torch.equal(part, among[:, :width])


def test_silu_of_any_number(ops: CpuOps) -> None:
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([0.0, -0.0, 1e-30, 3e38, -3e38, torch.nan])])
    exact = torch.nn.functional.silu(x.double())
    ours = ops.activate(x[None], Activation.SILU)[0].double()
    torch.testing.assert_close(ours, exact, rtol=5e-6, atol=1e-30, equal_nan=True)
