"""Caches of eight bits on Triton: what is stored is the reference's, bit for bit; attention is that of its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret, interpret_rows  # isort: skip - before anything that imports triton

from cadence.kernels.interface.attention_batch import Sees
from cadence.kernels.interface.ops import OWN_SCALES, Rotation
from cadence.kernels.reference.kv_rows import MOST, pack_rows
from cadence.kernels.triton.ops import TritonOps
from tests.helpers import kernel_checks as checks
from tests.helpers.byte_caches import on_gpu
from tests.helpers.kernel_cases import AttentionCase, make_inputs, only, spread
from tests.helpers.kernel_checks_fused import one_token_each
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.device

TYPES = [*MOST]
FAST, FIXED = TritonOps(), TritonOps(deterministic=True)


def rows_to_store(count: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dim)
    x = torch.randn((count, 5, dim), generator=generator)
    x[0] = 0.0
    x[1] *= 1e-4
    x[2, :, 0] = 127.0  # of int8 the scale is 1: halves are ties
    x[2, :, 1:] = torch.arange(dim - 1) + 0.5
    x[3] *= 30.0
    x[4] *= 1e-32
    x[5, :, dim // 2] = torch.nan
    x[6, :, -1] = torch.inf
    x[7, :, 0] = 448.0  # of E4M3 the scale is 1: 17, 19, ... are ties
    x[7, :, 1:] = torch.arange(dim - 1) + 16.0
    return x.to(dtype)


def in_parts(cache: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[blocks, heads, block_size, D + 4] -> entries as bytes, and scales: those of NaN have bits of their own."""
    rows = cache.contiguous().flatten(2).view(torch.uint8)
    size = cache.shape[2] * head_dim
    return rows[..., :size], rows[..., size:].contiguous().view(torch.float32)


STORED = [(16, 16, torch.float32, OWN_SCALES), (20, 4, torch.float16, (0.02, 0.5)), (80, 8, torch.bfloat16, OWN_SCALES)]
NUM_ROWS = 12 if DEVICE == "cuda" else 8
FORMS = [(*stored, cache_dtype) for stored in STORED for cache_dtype in TYPES]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of rows that hold NaN and infinity
@pytest.mark.parametrize(
    ("head_dim", "block_size", "dtype", "fixed", "cache_dtype"),
    mostly_wide_rows(FORMS, [FORMS[0], FORMS[4], FORMS[8 if DEVICE == "cuda" else 2]]),  # each type
)
def test_stored_rows_equal_the_reference_bit_for_bit(
    head_dim: int, block_size: int, dtype: torch.dtype, fixed: tuple[float, float], cache_dtype: torch.dtype
) -> None:
    """Alone, and with the rotation (by nothing, and by half of each head) in one kernel."""
    packed = rows_to_store(NUM_ROWS, head_dim, dtype)
    k, v = packed[:, :2], packed[:, 3:]
    slots = torch.randperm(7 * block_size, generator=torch.Generator().manual_seed(1))[:NUM_ROWS]
    empty = torch.zeros((7, 2, block_size, head_dim + 4), dtype=cache_dtype)
    positions = torch.arange(NUM_ROWS)

    def written(ops: TritonOps, rotary: int) -> list[torch.Tensor]:
        caches = [spread(empty.to(DEVICE), 0), spread(empty.to(DEVICE), 48)]
        if rotary < 0:
            ops.write_kv((k.to(DEVICE), v.to(DEVICE)), (caches[0], caches[1]), slots.to(DEVICE), fixed)
        else:  # angles of zero: entries pass through the rotation unchanged
            cos_sin = torch.cat([torch.ones(NUM_ROWS, rotary // 2), torch.zeros(NUM_ROWS, rotary // 2)], dim=1)
            rotation = Rotation(cos_sin.to(DEVICE), kv_scales=fixed)
            batch = one_token_each(positions.to(DEVICE), slots.to(DEVICE))
            qkv = [each.clone().to(DEVICE) for each in (packed[:, :1], k, v)]
            ops.rope_write_kv((qkv[0], qkv[1], qkv[2]), positions.to(DEVICE), rotation, (*caches,), batch, 0)
        return [cache.cpu() for cache in caches]

    rows = [torch.zeros_like(empty), torch.zeros_like(empty)]
    checks.REFERENCE.write_kv((k, v), (rows[0], rows[1]), slots, fixed)
    expected = on_gpu((rows[0], rows[1]))
    half = head_dim // 4 * 2
    for ops, rotary in ((FAST, -1), (FAST, 0), (FAST, half), (FIXED, half)):
        for ours, reference in zip(written(ops, rotary), expected, strict=True):
            ours_parts, parts = in_parts(ours, head_dim), in_parts(reference, head_dim)
            assert torch.equal(ours_parts[0], parts[0]), rotary
            torch.testing.assert_close(ours_parts[1], parts[1], rtol=0, atol=0, equal_nan=True)


SMALL = {
    "long prefill": AttentionCase(((0, 140), (65, 70)), 2, 1, 16),
    "decodes before prompts": AttentionCase(((30, 1), (0, 1), (0, 90), (63, 2)), 2, 1, 16, dtype=torch.float16),
    "split decode": AttentionCase(((700, 1), (20, 1)), 3, 1, 16, dtype=torch.float16),
    "split chunk of a prompt": AttentionCase(((560, 7), (10, 3)), 2, 1, 16),
    "split chunk with window": AttentionCase(((300, 9), (70, 1)), 4, 1, 16, block_size=8, window=70),
    "window": AttentionCase(((100, 150), (70, 1)), 1, 1, 16, block_size=8, window=90),
    "chunk": AttentionCase(((100, 70), (70, 1), (95, 1)), 2, 1, 16, block_size=8, chunk=48),
    "split with chunk": AttentionCase(((700, 1), (299, 9)), 2, 1, 16, chunk=300),
    "other layers between blocks": AttentionCase(((30, 1), (0, 70)), 2, 1, 16, window=300, apart=48),
    "soft-cap": AttentionCase(((0, 70), (20, 1)), 1, 1, 20, softcap=5.0),
    "pages larger than tiles": AttentionCase(((70, 1), (0, 70)), 1, 1, 16, block_size=128),
    "odd head, two groups": AttentionCase(((30, 1), (0, 40)), 4, 1, 80, 4, dtype=torch.float16, num_groups=2),
    "both ways": AttentionCase(((130, 1), (0, 40)), 3, 1, 16, sees=Sees.BOTH_WAYS, reach=9),
    "both ways, few queries": AttentionCase(((160, 7), (0, 3)), 2, 1, 16, sees=Sees.BOTH_WAYS),
    "more queries than keys": AttentionCase(((40, 1), (-30, 50), (-2, 3)), 2, 1, 16, sees=Sees.BOTH_WAYS),
    "both ways, window": AttentionCase(((130, 1), (0, 90)), 2, 1, 16, window=20, sees=Sees.BOTH_WAYS),
}


ATTENTION = [(name, cache_dtype) for name in SMALL for cache_dtype in TYPES]
ALWAYS = [(name, TYPES[0]) for name in SMALL] + [("split decode", each) for each in TYPES[1:]]
if DEVICE == "cpu":
    ALWAYS = [(name, TYPES[0]) for name in ("decodes before prompts", "split decode", "window", "soft-cap")]
    ALWAYS += [("split chunk with window", TYPES[1]), ("split decode", TYPES[2]), ("both ways", TYPES[0])]
    ALWAYS += [("chunk", TYPES[0]), ("split with chunk", TYPES[0])]


@pytest.mark.parametrize(("name", "cache_dtype"), mostly_wide_rows(ATTENTION, ALWAYS))
def test_attention_is_that_of_the_numbers_stored(name: str, cache_dtype: torch.dtype) -> None:
    case = replace(SMALL[name], cache_dtype=cache_dtype, turned=True)
    checks.check_attention(FAST, case, DEVICE)
    checks.check_attention(FIXED, case, DEVICE)


SIZES = [(1e-6, 1e-6), (3e4, 3e4), (1.0, 1e-12), (1e-3, 1e9)]


@pytest.mark.parametrize("sizes", interpret(SIZES, SIZES[3:]))
def test_keys_and_values_of_any_size(sizes: tuple[float, float]) -> None:
    """Queries of 16 bits are multiplied in float16: scales bring everything into its range."""
    case = AttentionCase(((0, 60), (200, 1)), 4, 2, 16, dtype=torch.float16, cache_dtype=torch.int8, turned=True)
    inputs = make_inputs(replace(case, cache_dtype=torch.float32, turned=False))
    k, v = (cache.nan_to_num(0.0) * size for cache, size in zip(inputs.kv, sizes, strict=True))
    q = (inputs.q.float() * min(1.0 / sizes[0], 1e4)).half()
    stored = on_gpu((pack_rows(k, torch.int8), pack_rows(v, torch.int8)))
    batch = make_inputs(case, DEVICE).batch
    there = (stored[0].to(DEVICE), stored[1].to(DEVICE))
    for ops in (FAST, FIXED):
        exact = checks.REFERENCE.paged_attention(q.float(), (k, v), inputs.batch, 0, case.shape)
        ours = ops.paged_attention(q.float().to(DEVICE), there, batch, 0, case.shape).cpu()
        halves = ops.paged_attention(q.to(DEVICE).bfloat16(), there, batch, 0, case.shape).cpu()
        torch.testing.assert_close(ours / sizes[1], exact / sizes[1], rtol=0, atol=0.06)
        torch.testing.assert_close(halves.float() / sizes[1], exact / sizes[1], rtol=0.02, atol=0.15)


FIXED_CASES = [(window, cache_dtype) for window in (0, 70) for cache_dtype in (torch.int8, torch.float8_e4m3fn)]


@pytest.mark.parametrize(("window", "cache_dtype"), interpret_rows(FIXED_CASES, [(70, torch.int8)]))
def test_fixed_bits_do_not_depend_on_the_batch_or_the_chunks(window: int, cache_dtype: torch.dtype) -> None:
    sequences = ((80, 1), (0, 120), (64, 40)) if DEVICE == "cuda" else ((70, 1), (20, 60))
    check_bits(AttentionCase(sequences, 3, 1, 16, window=window, cache_dtype=cache_dtype, turned=True), (37, 1), 29)


def check_bits(case: AttentionCase, chunks: tuple[int, ...], every: int) -> None:
    inputs = make_inputs(case, DEVICE)
    together = FIXED.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    for index, (_, new) in enumerate(case.sequences):
        start = int(inputs.batch.query_start[index])
        for chunk in {new, *chunks}:
            for skip in range(0, new, chunk * (every if chunk == 1 else 1)):
                part = only(inputs, index, skip, min(chunk, new - skip))
                alone = FIXED.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
                assert torch.equal(alone, together[start + skip : start + skip + alone.shape[0]])


UNSEEN = [(cache_dtype, window) for cache_dtype in TYPES for window in (0, 90)]


@pytest.mark.parametrize(("cache_dtype", "window"), interpret_rows(UNSEEN, [(torch.int8, 90)]))
def test_what_a_sequence_does_not_see_does_not_show(cache_dtype: torch.dtype, window: int) -> None:
    """Blocks beyond it, the rest of its last block, and blocks before its window hold any entries, and scales that may
    be no numbers."""
    case = AttentionCase(((150, 3), (131, 1)), 2, 1, 16, window=window, cache_dtype=cache_dtype, turned=True)
    inputs = make_inputs(case, DEVICE)
    expected = [ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape) for ops in (FAST, FIXED)]
    rows = make_inputs(replace(case, turned=False)).kv
    kept = torch.zeros(rows[0].shape[:3], dtype=torch.bool)
    for row, (cached, new) in zip(inputs.batch.rows.tolist(), case.sequences, strict=True):
        for position in range(max(cached + 1 - window, 0) if window else 0, cached + new):
            kept[int(inputs.batch.block_tables[0][row, position // 16]), :, position % 16] = True
    junk = torch.full(rows[0].shape[-1:], 0x7B, dtype=torch.uint8)  # the largest number of E5M2
    junk[-4:] = 255  # of scales: NaN
    spoilt = [torch.where(kept[..., None], each.view(torch.uint8), junk).view(cache_dtype) for each in rows]
    there = [each.to(DEVICE) for each in on_gpu((spoilt[0], spoilt[1]))]
    for ops, wanted in zip((FAST, FIXED), expected, strict=True):
        ours = ops.paged_attention(inputs.q, (there[0], there[1]), inputs.batch, 0, case.shape)
        assert torch.equal(ours, wanted)


MIXTURE = ((1700, 1), (33, 1), (0, 1), (0, 300), (500, 77), (3, 1), (1023, 2))
DECODE = ((1700, 1), (33, 1), (2047, 1))
FEW = ((1700, 3), (33, 1), (0, 4))
SHAPES = {  # heads, kv heads, head size, block size, window, soft-cap, dtype
    "8B": (32, 8, 128, 16, 0, 0.0, torch.bfloat16),
    "8B window": (32, 8, 128, 16, 100, 0.0, torch.bfloat16),
    "half": (16, 8, 128, 32, 0, 0.0, torch.float16),
    "float": (8, 2, 128, 16, 1024, 0.0, torch.float32),
    "small": (9, 3, 64, 16, 0, 0.0, torch.bfloat16),
    "many heads per group": (32, 2, 64, 16, 1, 0.0, torch.bfloat16),
    "one head": (1, 1, 80, 16, 0, 50.0, torch.bfloat16),
    "96": (6, 2, 96, 8, 0, 30.0, torch.float16),
    "256": (8, 4, 256, 16, 512, 50.0, torch.bfloat16),
}


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", TYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_attention_on_the_gpu(name: str, cache_dtype: torch.dtype) -> None:
    heads, kv_heads, dim, block, window, softcap, dtype = SHAPES[name]
    for sequences in (MIXTURE, DECODE, FEW):
        case = AttentionCase(sequences, heads, kv_heads, dim, block, window, softcap, dtype, cache_dtype, turned=True)
        checks.check_attention(FAST, case, DEVICE)
        checks.check_attention(FIXED, case, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", TYPES)
def test_many_decodes_at_once_on_the_gpu(cache_dtype: torch.dtype) -> None:
    lengths = torch.randint(1, 900, (150,), generator=torch.Generator().manual_seed(0)).tolist()
    sequences = tuple((n, 1) for n in lengths)
    case = AttentionCase(sequences, 8, 2, 128, dtype=torch.bfloat16, cache_dtype=cache_dtype, turned=True)
    for _ in range(5):  # the merge is a race that must always end the same way
        checks.check_attention(FAST, case, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", TYPES)
@pytest.mark.parametrize("window", [0, 200])
def test_fixed_bits_on_the_gpu(window: int, cache_dtype: torch.dtype) -> None:
    sequences = ((80, 1), (900, 1), (0, 700), (64, 140))
    case = AttentionCase(sequences, 32, 8, 128, window=window, dtype=torch.bfloat16, cache_dtype=cache_dtype)
    check_bits(replace(case, turned=True), (37, 1), 29)
