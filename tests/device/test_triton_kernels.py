"""The Triton kernels against the reference: on a GPU where there is one, else tiny shapes in the interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.triton_mode import DEVICE  # isort: skip - before anything that imports triton

from cadence.kernels.attention_batch import AttentionBatch
from cadence.kernels.triton.attention import choose_tiling
from cadence.kernels.triton.ops import TritonOps
from tests.helpers import kernel_checks as checks
from tests.helpers.kernel_cases import AttentionCase, make_inputs

OPS = TritonOps()
GPU_DTYPES = [torch.float32, torch.bfloat16, torch.float16]

SMALL = {
    "one prefill": AttentionCase(((0, 5),), head_dim=16),
    "ragged mixture": AttentionCase(((0, 20), (30, 1), (0, 1), (63, 2)), 4, 2, 16),
    "decode, three heads per kv head": AttentionCase(((30, 1), (0, 1), (90, 1)), 9, 3, 32),
    "split decode": AttentionCase(((700, 1), (20, 1)), 3, 1, 16),
    "split chunk of a prompt": AttentionCase(((560, 7),), 2, 1, 16),
    "split with window": AttentionCase(((700, 1), (20, 1)), 2, 1, 16, window=300),
    "window": AttentionCase(((100, 9), (70, 1)), 4, 1, 16, block_size=8, window=20),
    "window of one": AttentionCase(((3, 4),), 1, 1, 16, window=1),
    "soft-cap": AttentionCase(((0, 6), (20, 1)), 4, 4, 20, softcap=5.0),
    "half, odd head, two groups": AttentionCase(((0, 7), (30, 1)), 4, 1, 80, 4, dtype=torch.float16, num_groups=2),
}


@pytest.mark.parametrize("name", SMALL)
def test_attention_matches_the_reference(name: str) -> None:
    checks.check_attention(OPS, SMALL[name], DEVICE)


def test_few_long_sequences_are_split_and_many_are_not() -> None:
    case = SMALL["split decode"]
    inputs = make_inputs(case)
    batch = inputs.batch
    tiling = choose_tiling(batch, case.shape, inputs.q)
    assert tiling.num_splits > 1
    assert tiling.num_splits * tiling.split_keys >= batch.max_seq_len
    assert tiling.split_keys % tiling.keys == 0
    rows = torch.zeros(600, dtype=torch.int32)
    crowd = AttentionBatch(rows, batch.query_start, batch.seq_lens, batch.block_tables, batch.slots, 1, 4096)
    assert choose_tiling(crowd, case.shape, inputs.q).num_splits == 1


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


MIXTURE = ((0, 300), (1700, 1), (33, 1), (500, 77), (0, 1), (1023, 2))
DECODE = ((1700, 1), (33, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_attention_on_the_gpu(head_dim: int, dtype: torch.dtype) -> None:
    for sequences in (MIXTURE, DECODE):
        checks.check_attention(OPS, AttentionCase(sequences, 3, 1, head_dim, dtype=dtype), DEVICE)
        capped = AttentionCase(sequences, 8, 2, head_dim, 32, window=100, softcap=30.0, dtype=dtype)
        checks.check_attention(OPS, capped, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (32, 2)])
@pytest.mark.parametrize(("window", "softcap"), [(1, 0.0), (1024, 0.0), (0, 50.0)])
def test_shapes_of_attention_on_the_gpu(heads: tuple[int, int], window: int, softcap: float) -> None:
    for sequences in (MIXTURE, DECODE):
        case = AttentionCase(sequences, *heads, 64, window=window, softcap=softcap, dtype=torch.bfloat16)
        checks.check_attention(OPS, case, DEVICE)


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
