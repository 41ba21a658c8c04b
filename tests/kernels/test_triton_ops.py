"""The Triton kernels against the reference: on a GPU where there is one, else tiny shapes in the interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.triton_mode import DEVICE, interpret, interpret_each_once, interpret_rows  # isort: skip - before anything that imports triton

from cadence.kernels.triton.linear.few_rows import FewTile, choose_few, choose_split, linear_few
from cadence.kernels.triton.linear.skinny import SkinnyTile, linear_skinny
from cadence.kernels.triton.ops import TritonOps
from tests.helpers import kernel_checks as checks
from tests.helpers import kernel_checks_fused as fused

pytestmark = pytest.mark.device

OPS = TritonOps()
FIXED = TritonOps(deterministic=True)
GPU_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TWO_DTYPES = [torch.float32, torch.float16]
DRAWN_DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(("width", "dtype"), interpret_each_once([4, 33, 2500], TWO_DTYPES))
def test_elementwise_ops_match_the_reference(width: int, dtype: torch.dtype) -> None:
    checks.check_norms(OPS, width, dtype, DEVICE)
    checks.check_gates(OPS, width, dtype, DEVICE)


@pytest.mark.parametrize(("dims", "dtype"), interpret_each_once([(32, 12), (20, 20), (64, 64)], TWO_DTYPES))
def test_rope_and_write_kv_match_the_reference(dims: tuple[int, int], dtype: torch.dtype) -> None:
    head_dim, rotary_dim = dims
    checks.check_rope(OPS, head_dim, rotary_dim, dtype, DEVICE)
    checks.check_write_kv(OPS, head_dim, 8, dtype, DEVICE)


@pytest.mark.parametrize("vocab_size", [1, 3001])
def test_gumbel_noise_equals_the_reference_bit_for_bit(vocab_size: int) -> None:
    checks.check_gumbel(OPS, vocab_size, DEVICE)


@pytest.mark.parametrize(("vocab_size", "dtype"), interpret_each_once([1, 31, 33, 3001], GPU_DTYPES))
def test_masks_bar_what_the_reference_bars(vocab_size: int, dtype: torch.dtype) -> None:
    checks.check_token_mask(OPS, vocab_size, dtype, DEVICE)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    interpret_each_once([(1, 7, 40), (1, 5, 1030), (2, 5, 1030), (3, 4, 24), (2, 7, 40)], TWO_DTYPES),
)
def test_norm_linear_and_gate_in_one_match_double_precision(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    fused.check_fused_linear(OPS, shape, dtype, DEVICE)


@pytest.mark.parametrize("rows", interpret([2, 5, 16], [5]))
def test_a_handful_of_rows_match_double_precision(rows: int) -> None:
    x, bias = torch.randn(rows, 128).half(), torch.randn(64).half()
    weight = (torch.randn(64, 128) / 128**0.5).half()
    exact = x.double() @ weight.double().T + bias.double()
    tile = SkinnyTile(columns=64, stages=2, ahead=0)
    for gate, expected in (("", exact), ("silu", F.silu(exact[:, :32]) * exact[:, 32:])):
        ours = linear_skinny(x.to(DEVICE), weight.to(DEVICE), bias.to(DEVICE), tile, gate, pdl=False)
        torch.testing.assert_close(ours.cpu().double(), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("dims", "dtype"), interpret_each_once([(2, 1, 32, 12), (9, 3, 20, 20), (2, 2, 20, 0), (4, 2, 16, 16)], TWO_DTYPES)
)
def test_rope_and_write_in_one_match_the_reference(dims: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    fused.check_rope_write_kv(OPS, dims, dtype, DEVICE)


@pytest.mark.parametrize(("size", "dtype"), interpret_each_once([(1, 5), (5, 3001)], DRAWN_DTYPES))
def test_draw_gives_the_tokens_of_the_reference(size: tuple[int, int], dtype: torch.dtype) -> None:
    fused.check_draw(OPS, *size, dtype, DEVICE)


@pytest.mark.parametrize(("size", "dtype"), interpret_each_once([(1, (3, 5)), (10, (2100, 3001))], DRAWN_DTYPES))
def test_draws_from_a_part_of_the_vocabulary(size: tuple[int, tuple[int, int]], dtype: torch.dtype) -> None:
    fused.check_mapped_draw(OPS, *size, dtype, DEVICE)


def test_picked_rows() -> None:
    fused.check_pick(OPS, torch.float32, DEVICE)


@pytest.mark.parametrize("dtype", interpret(TWO_DTYPES, TWO_DTYPES[:1]))
def test_deterministic_rows_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    fused.check_fused_linear(FIXED, (1, 9, 40), dtype, DEVICE)
    fused.check_rows_stand_alone(FIXED, (18, 9, 40), dtype, DEVICE)


@pytest.mark.parametrize(("gate", "rows", "biased"), interpret_each_once(["silu", "gelu", ""], [70, 3], [True, False]))
def test_few_rows_match_double_precision(gate: str, rows: int, biased: bool) -> None:
    x, weight, bias = torch.randn(rows, 128), torch.randn(64, 128) / 11, torch.randn(64)
    halves = [tensor.to(DEVICE, torch.float16) for tensor in (x, weight, bias)]
    tile = FewTile(64, 32, 64, 4, 2)
    found = linear_few(halves[0], halves[1], halves[2] if biased else None, tile, gate, pdl=False)
    exact = halves[0].double() @ halves[1].double().T + (halves[2].double() if biased else 0.0)
    if gate:
        g, u = exact.chunk(2, dim=1)
        exact = (F.silu(g) if gate == "silu" else F.gelu(g, approximate="tanh")) * u
    torch.testing.assert_close(found.double(), exact, rtol=2e-3, atol=2e-3)


def test_few_rows_are_for_small_weights_and_whole_tiles() -> None:
    def chosen(rows: int, outputs: int, width: int, gated: bool = False) -> FewTile | None:
        return choose_few(rows, torch.empty((outputs, width), dtype=torch.bfloat16, device="meta"), gated)

    assert chosen(64, 1024, 3072) and chosen(256, 1024, 3072) and chosen(64, 6144, 1024, gated=True)
    assert not chosen(257, 1024, 3072) and not chosen(64, 28672, 4096, gated=True) and not chosen(64, 1000, 1024)
    assert not chosen(64, 1024, 1000) and not chosen(256, 8192, 1024), "more programs than processors"
    assert chosen(64, 4096, 1024) != chosen(128, 4096, 1024) != chosen(256, 4096, 1024), "larger tiles for more rows"


@pytest.mark.parametrize(("rows", "biased"), interpret_rows([(3, False), (70, True)], [(70, True)]))
def test_terms_of_a_product_add_up_to_it_and_a_norm_adds_them_up(rows: int, biased: bool) -> None:
    x, weight, bias = (torch.randn(*size).half() for size in ((rows, 192), (64, 192), (64,)))
    given = [tensor.to(DEVICE) for tensor in (x, weight / 11, bias)]
    tile = FewTile(64, 32, 64, 4, 2, terms=3)
    terms = linear_few(given[0], given[1], given[2] if biased else None, tile, "", pdl=False)
    exact = given[0].double() @ given[1].double().T + (given[2].double() if biased else 0.0)
    assert terms.shape == (3, rows, 64)
    torch.testing.assert_close(terms.double().sum(0), exact, rtol=2e-3, atol=2e-3)
    residual, scale = torch.randn(rows, 64).half(), torch.randn(64)
    ours = OPS.add_rms_norm(terms, residual.to(DEVICE), scale.to(DEVICE), 1e-5)
    expected = checks.REFERENCE.add_rms_norm(terms.float().sum(0).cpu(), residual.float(), scale, 1e-5)
    for found, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-3, atol=2e-3)


def test_products_are_split_where_few_programs_would_share_them() -> None:
    def chosen(rows: int, outputs: int, width: int) -> FewTile | None:
        return choose_split(rows, torch.empty((outputs, width), dtype=torch.bfloat16, device="meta"))

    assert chosen(64, 1024, 3072) and chosen(128, 1024, 2048) and chosen(16, 576, 1536) and chosen(16, 576, 576)
    assert not chosen(129, 1024, 3072) and not chosen(64, 4096, 1024), "there are programs enough"
    assert not chosen(64, 4096, 4096), "a large weight"
    assert not chosen(64, 1024, 1000), "no whole tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_in_terms_on_the_gpu(dtype: torch.dtype) -> None:
    for rows, outputs, width in (
        (17, 1024, 2048),
        (64, 1024, 3072),
        (100, 1024, 3072),
        (64, 576, 1536),
        (33, 576, 576),
    ):
        x, weight = torch.randn(rows, width).to(dtype), (torch.randn(outputs, width) / width**0.5).to(dtype)
        residual, scale = torch.randn(rows, outputs).to(dtype), torch.randn(outputs).to(dtype)
        terms = OPS.linear_terms(x.to(DEVICE), weight.to(DEVICE), None)
        assert terms.dim() == 3
        total = x.double() @ weight.double().T + residual.double()
        normed = total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale.double()
        ours = OPS.add_rms_norm(terms, residual.to(DEVICE), scale.to(DEVICE), 1e-5)
        for found, exact in zip(ours, (normed, total), strict=True):
            torch.testing.assert_close(found.cpu().double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_few_rows_on_the_gpu(dtype: torch.dtype) -> None:
    for shape in (
        (2, 1024, 2048),
        (64, 2048, 1024),
        (128, 2048, 1024),
        (200, 2048, 1024),
        (256, 960, 576),
        (130, 1536, 576),
    ):
        fused.check_fused_linear(OPS, shape, dtype, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_a_handful_of_rows_on_the_gpu(dtype: torch.dtype) -> None:
    for rows in (2, 3, 5, 8, 9, 16):
        for outputs, width in ((960, 576), (1536, 576), (640, 1024), (4096, 4096), (96, 14336), (1000, 577)):
            fused.check_fused_linear(OPS, (rows, outputs, width), dtype, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_one_row_on_the_gpu(dtype: torch.dtype) -> None:
    for shape in ((1, 3073, 4096), (1, 96, 14336), (1, 1000, 577), (1, 1536, 576), (5, 640, 1024)):
        fused.check_fused_linear(OPS, shape, dtype, DEVICE)
    for dims in ((32, 8, 128, 128), (9, 3, 64, 64), (12, 4, 96, 48), (4, 1, 256, 256), (4, 4, 80, 0)):
        fused.check_rope_write_kv(OPS, dims, dtype, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_draws_on_the_gpu(dtype: torch.dtype) -> None:
    for lines, vocab in ((1, 5), (7, 151_936), (300, 3001)):
        fused.check_draw(OPS, lines, vocab, dtype, DEVICE)
    for lines, sizes in ((1, (3, 5)), (10, (32_000, 151_936)), (300, (2999, 3001))):
        fused.check_mapped_draw(OPS, lines, sizes, dtype, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_deterministic_rows_on_the_gpu(dtype: torch.dtype) -> None:
    fused.check_fused_linear(FIXED, (130, 640, 1024), dtype, DEVICE)
    fused.check_rows_stand_alone(FIXED, (300, 640, 1024), dtype, DEVICE)
    fused.check_rows_stand_alone(FIXED, (1100, 10_000, 512), dtype, DEVICE)  # every tile there is


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_other_ops_on_the_gpu(dtype: torch.dtype) -> None:
    for width in (64, 576, 4096, 14336):
        checks.check_norms(OPS, width, dtype, DEVICE)
        checks.check_gates(OPS, width, dtype, DEVICE)
    for head_dim in (64, 80, 128, 256):
        checks.check_rope(OPS, head_dim, head_dim, dtype, DEVICE)
        checks.check_write_kv(OPS, head_dim, 16, dtype, DEVICE)
    checks.check_linear(OPS, (33, 100, 576), dtype, DEVICE)


@pytest.mark.gpu
def test_gumbel_noise_on_the_gpu_is_that_of_the_cpu() -> None:
    checks.check_gumbel(OPS, 200_003, DEVICE)
