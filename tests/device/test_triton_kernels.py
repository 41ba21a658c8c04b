"""The Triton kernels against the reference: on a GPU where there is one, else tiny shapes in the interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.triton_mode import DEVICE  # isort: skip - before anything that imports triton

from cadence.kernels.triton.ops import TritonOps
from tests.helpers import kernel_checks as checks
from tests.helpers import kernel_checks_fused as fused

OPS = TritonOps()
FIXED = TritonOps(deterministic=True)
GPU_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [4, 33, 2500])
def test_elementwise_ops_match_the_reference(width: int, dtype: torch.dtype) -> None:
    checks.check_norms(OPS, width, dtype, DEVICE)
    checks.check_gates(OPS, width, dtype, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (20, 20), (32, 12)])
def test_rope_and_write_kv_match_the_reference(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    checks.check_rope(OPS, head_dim, rotary_dim, dtype, DEVICE)
    checks.check_write_kv(OPS, head_dim, 8, dtype, DEVICE)


@pytest.mark.parametrize("vocab_size", [1, 3001])
def test_gumbel_noise_equals_the_reference_bit_for_bit(vocab_size: int) -> None:
    checks.check_gumbel(OPS, vocab_size, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 7, 40), (1, 5, 1030), (3, 4, 24)])
def test_norm_linear_and_gate_in_one_match_double_precision(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    fused.check_fused_linear(OPS, shape, dtype, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dims", [(4, 2, 16, 16), (9, 3, 20, 20), (2, 1, 32, 12), (2, 2, 20, 0)])
def test_rope_and_write_in_one_match_the_reference(dims: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    fused.check_rope_write_kv(OPS, dims, dtype, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("lines", "vocab"), [(1, 5), (5, 3001)])
def test_draw_gives_the_tokens_of_the_reference(lines: int, vocab: int, dtype: torch.dtype) -> None:
    fused.check_draw(OPS, lines, vocab, dtype, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_deterministic_rows_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    fused.check_fused_linear(FIXED, (1, 9, 40), dtype, DEVICE)
    fused.check_rows_stand_alone(FIXED, (18, 9, 40), dtype, DEVICE)


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
