"""Attention in C over caches of every type: near the reference, and a query's bits depend on its position alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.model.kv_spec import LayerKV
from cadence.device.calls import Calls
from cadence.device.dtypes import DTYPES
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.attention_batch import AttentionShape, DistanceBias, Sees
from cadence.kernels.interface.ops import OWN_SCALES, Ops
from cadence.kernels.reference.kv_rows import QUANTISED, unpack_rows
from tests.helpers import kernel_checks as checks
from tests.helpers.kernel_cases import AttentionCase, AttentionInputs, make_inputs, only
from tests.helpers.packing import instruction_sets
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

OPS = CpuOps(Calls(2))
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
CACHES = [*FLOATS, *QUANTISED]
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HALF_ERROR = 6e-3  # of float16 arithmetic, where values are of size one
NARROW_ERROR = 8e-3  # of weights in bf16, the same, before the result is rounded
CHUNKS = [0, 0, 1, 13, 64, 128, 200]
NARROW_DIMS = [32, 64, 96, 128, 256]
needs_amx = pytest.mark.skipif("amx" not in instruction_sets(), reason="this machine has no AMX")


@st.composite
def cases(draw: st.DrawFn) -> AttentionCase:
    sequence = st.tuples(st.sampled_from([0, 1, 15, 63, 127, 128, 300]), st.sampled_from([1, 1, 2, 9, 70]))
    kv_heads = draw(st.sampled_from([1, 2]))
    reach = draw(st.sampled_from([0, 0, 1, 7, 90, 500]))
    sees = draw(st.sampled_from(Sees))
    return AttentionCase(
        sequences=tuple(draw(st.lists(sequence, min_size=1, max_size=4))),
        num_kv_heads=kv_heads,
        num_heads=kv_heads * draw(st.integers(1, 8)),
        head_dim=draw(st.sampled_from([4, 20, 32, 72, 80])),
        block_size=draw(st.sampled_from([1, 8, 16, 256])),
        window=draw(st.sampled_from([0, 0, 1, 7, 150])),
        softcap=0.0 if reach else draw(st.sampled_from([0.0, 0.0, 30.0])),
        dtype=draw(st.sampled_from(FLOATS)),
        cache_dtype=draw(st.sampled_from(CACHES)),
        seed=draw(st.integers(0, 100)),
        apart=draw(st.sampled_from([0, 40])),
        sees=sees,
        reach=reach,
        chunk=draw(st.sampled_from(CHUNKS)) if sees is Sees.CAUSAL else 0,
    )


def check(case: AttentionCase) -> None:
    """Over float16 the products may be made in float16."""
    if case.cache_dtype is not torch.float16:
        checks.check_attention(OPS, case, "cpu")
        return
    inputs = make_inputs(case)
    ours, reference = (
        ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape).float() for ops in (OPS, checks.REFERENCE)
    )
    torch.testing.assert_close(ours, reference, rtol=checks.TOLERANCE[case.dtype], atol=HALF_ERROR)


@examples(25, 200)
@given(cases())
def test_caches_of_every_type_match_the_reference(case: AttentionCase) -> None:
    check(case)


@pytest.mark.parametrize("ops", [OPS, checks.REFERENCE], ids=["cpu", "reference"])
def test_what_queries_see_is_known_or_refused(ops: Ops) -> None:
    case = AttentionCase(((0, 5),), head_dim=32)
    inputs = make_inputs(case)
    with pytest.raises(KeyError, match="a prefix"):
        ops.paged_attention(inputs.q, inputs.kv, replace(inputs.batch, sees="a prefix"), 0, case.shape)  # type: ignore[arg-type]


def test_a_distance_bias_fits_its_layer_or_is_refused() -> None:
    for table in (torch.zeros(2, 6), torch.zeros(2, 5).double(), torch.zeros(5, 2).T):
        with pytest.raises(ValueError, match="dense float32"):
            DistanceBias(table)
    with pytest.raises(ValueError, match="for 4 heads"):
        AttentionShape(4, 4, 32, 1.0, bias=DistanceBias(torch.zeros(2, 5)))
    with pytest.raises(ValueError, match="softcap 30"):
        AttentionShape(2, 2, 32, 1.0, softcap=30.0, bias=DistanceBias(torch.zeros(2, 5)))


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_usual_dims_over_long_histories(head_dim: int, cache_dtype: torch.dtype) -> None:
    for heads in ((3, 1), (4, 4)):
        case = AttentionCase(((700, 1), (260, 20)), *heads, head_dim, cache_dtype=cache_dtype)
        check(case)


def sized(inputs: AttentionInputs, q: float, k: float, v: float) -> AttentionInputs:
    return replace(inputs, q=inputs.q * q, kv=(inputs.kv[0] * k, inputs.kv[1] * v))


def errors(case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    """What is wrong with our result, by the reference in float64 on the same numbers."""
    ours = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    kv = (inputs.kv[0].double(), inputs.kv[1].double())
    return ours.double() - checks.REFERENCE.paged_attention(inputs.q.double(), kv, inputs.batch, 0, case.shape)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("sizes", "most", "usual"),
    [
        ((1.0, 1.0, 1.0), HALF_ERROR, 3e-4),
        ((4.0, 1.0, 1.0), 3e-2, 2e-3),  # scores up to 2^5, where float16 has steps of 2^-5
        ((30.0, 3.0, 1.0), 5e-2, 6e-4),  # beyond: in float32, but for small sums of large products
        ((1e-3, 1e-3, 1e-3), 2e-3, 2e-4),
        ((1.0, 1.0, 100.0), HALF_ERROR, 3e-4),
        ((1.0, 1.0, 5000.0), HALF_ERROR, 3e-4),  # some sums of values leave float16
    ],
)
def test_float16_stays_near_float64(
    sizes: tuple[float, float, float], most: float, usual: float, head_dim: int
) -> None:
    """Flat and peaked weights, small and large values; most: of any entry, usual: root mean square."""
    case = AttentionCase(((0, 150), (700, 1)), 6, 2, head_dim, cache_dtype=torch.float16)
    wrong = errors(case, sized(make_inputs(case), *sizes)) / sizes[2]
    assert wrong.abs().max() < most
    assert wrong.square().mean().sqrt() < usual


@pytest.mark.parametrize(
    "products",  # by dimension, of every second key, in thousands: lanes overflow though the sum is nothing
    [{0: 81, 1: -81}, {0: 81, 8: -81}, {0: 81, 1: -40.5, 2: -40.5}, {0: -81, 1: 40.5, 2: 40.5}],
    ids=["both ways", "one lane", "up", "down"],
)
def test_scores_beyond_float16_are_noticed(products: dict[int, float]) -> None:
    case = AttentionCase(((0, 40), (200, 3)), 6, 2, 64, cache_dtype=torch.float16)
    inputs = make_inputs(case)
    q, k = inputs.q.clone(), inputs.kv[0].clone()
    for dim, thousands in products.items():
        q[..., dim] = thousands * 1000 / 150 / (case.shape.scale * 1.4427)
        k[..., dim] = 0.0
        k[..., 1::2, dim] = 150.0
    assert errors(case, replace(inputs, q=q, kv=(k, inputs.kv[1]))).abs().max() < 3e-2


def test_numbers_beyond_float16_stay_finite() -> None:
    """A query that float16 cannot hold; values whose sum overflows though their mean does not."""
    case = AttentionCase(((0, 40), (200, 3)), 6, 2, 64, cache_dtype=torch.float16)
    inputs = make_inputs(case)
    q, k, v = inputs.q.clone(), *[cache.clone() for cache in inputs.kv]
    q[5, 0, 40] = 1e6
    k[..., 40] *= 1e-5
    v[..., 3] = 60000.0
    wrong = errors(case, replace(inputs, q=q, kv=(k, v)))
    wrong[..., 3] /= 60000
    assert wrong.abs().max() < HALF_ERROR


@pytest.mark.parametrize("sizes", [(6.0, 1.0, 1.0), (1.0, 1.0, 2500.0)])
def test_the_way_out_of_float16_does_not_depend_on_the_chunks(sizes: tuple[float, float, float]) -> None:
    """Some rows need float32 for their scores or for their sums, others do not."""
    case = AttentionCase(((100, 60),), 6, 2, 64, window=70, cache_dtype=torch.float16)
    inputs = sized(make_inputs(case), *sizes)
    together = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    for chunk in (1, 7):
        for skip in range(0, 60, chunk):
            part = only(inputs, 0, skip, min(chunk, 60 - skip))
            alone = OPS.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
            assert torch.equal(alone, together[skip : skip + alone.shape[0]])


@st.composite
def narrow_cases(draw: st.DrawFn) -> AttentionCase:
    """Queries and caches of bf16, of dims that tiles take; blocks in which their rows lie one after another, or not."""
    sequence = st.tuples(st.sampled_from([0, 1, 15, 31, 95, 127, 128, 190, 300]), st.integers(1, 50))
    single = st.tuples(st.integers(0, 400), st.just(1))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    reach = draw(st.sampled_from([0, 0, 0, 9, 200]))
    sees = draw(st.sampled_from(Sees))
    return AttentionCase(
        sequences=tuple(draw(st.lists(sequence | single, min_size=1, max_size=6))),
        num_kv_heads=kv_heads,
        num_heads=kv_heads * draw(st.integers(1, 8)),
        head_dim=draw(st.sampled_from(NARROW_DIMS)),
        block_size=draw(st.sampled_from([16, 16, 32, 1, 8, 20, 48, 256])),
        window=draw(st.sampled_from([0, 0, 1, 7, 40, 150])),
        softcap=0.0 if reach else draw(st.sampled_from([0.0, 0.0, 0.0, 30.0])),
        dtype=torch.bfloat16,
        seed=draw(st.integers(0, 100)),
        sees=sees,
        reach=reach,
        chunk=draw(st.sampled_from(CHUNKS)) if sees is Sees.CAUSAL else 0,
    )


def assert_narrow(case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    """Beside the error of the weights a result has that of its own rounding."""
    ours = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    kv = (inputs.kv[0].double(), inputs.kv[1].double())
    exact = checks.REFERENCE.paged_attention(inputs.q.double(), kv, inputs.batch, 0, case.shape)
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=NARROW_ERROR)
    return ours


@examples(25, 200)
@given(narrow_cases())
def test_bf16_stays_near_float64(case: AttentionCase) -> None:
    assert_narrow(case, make_inputs(case))


@needs_amx
@examples(20, 100)
@given(narrow_cases())
def test_tiles_of_bf16_agree_with_float32_arithmetic(case: AttentionCase) -> None:
    """They are used: single weights are rounded. They are near: by no more than that."""
    inputs = make_inputs(case)
    plain = CpuOps(Calls(2), next(iter(instruction_sets())))
    ours, wide = (ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape) for ops in (OPS, plain))
    torch.testing.assert_close(ours.float(), wide.float(), rtol=2**-7, atol=NARROW_ERROR)
    if ours.numel() > 20_000 and case.window != 1 and case.chunk != 1:
        assert not torch.equal(ours, wide)


@pytest.mark.parametrize("head_dim", NARROW_DIMS)
@pytest.mark.parametrize("group", range(1, 9))
def test_bf16_of_every_group(group: int, head_dim: int) -> None:
    case = AttentionCase(((0, 50), (190, 1), (127, 3), (260, 17)), 2 * group, 2, head_dim, dtype=torch.bfloat16)
    assert_narrow(case, make_inputs(case))


def test_bf16_of_values_that_are_all_one_is_one() -> None:
    case = AttentionCase(((0, 50), (300, 1), (120, 9)), 6, 2, 64, window=70, dtype=torch.bfloat16)
    inputs = make_inputs(case)
    ones = torch.where(inputs.kv[1].isnan(), inputs.kv[1], 1.0)  # NaN stays where nothing was written
    ours = OPS.paged_attention(inputs.q, (inputs.kv[0], ones), inputs.batch, 0, case.shape)
    assert torch.equal(ours, torch.ones_like(ours))


@pytest.mark.parametrize("size", [1e-3, 20.0, 200.0])
def test_bf16_with_flat_and_peaked_weights(size: float) -> None:
    case = AttentionCase(((0, 60), (300, 1)), 6, 2, 64, dtype=torch.bfloat16)
    assert_narrow(case, sized(make_inputs(case), size, 1.0, 1.0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("isa", [next(iter(instruction_sets())), "auto"])
def test_what_lies_before_the_window_or_the_chunk_does_not_show(isa: str, dtype: torch.dtype) -> None:
    """Its blocks may be another's by now, and hold anything; blocks that are not whole steps of keys, too."""
    ops = CpuOps(Calls(2), isa)
    for block_size, chunk in itertools.product((16, 8, 4, 20), (0, 90)):
        case = AttentionCase(((253, 40), (303, 1)), 6, 2, 64, block_size, window=50, dtype=dtype, chunk=chunk)
        inputs = make_inputs(case)
        expected = ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
        table = inputs.batch.block_tables[0]
        k, v = (cache.clone() for cache in inputs.kv)
        for row, (cached, _) in zip(inputs.batch.rows.tolist(), case.sequences, strict=True):
            first = cached // chunk * chunk if chunk else cached + 1 - case.window
            for block in table[row, : first // block_size].tolist():
                k[block], v[block] = torch.nan, torch.nan
        assert torch.equal(ops.paged_attention(inputs.q, (k, v), inputs.batch, 0, case.shape), expected)


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [*[(torch.float32, cache) for cache in CACHES], (torch.bfloat16, torch.bfloat16)]
)
@pytest.mark.parametrize("head_dim", [20, 32, 96])  # rows to be padded, rows read where they lie
@pytest.mark.parametrize(
    ("heads", "window", "chunk"), [((3, 1), 0, 0), ((2, 2), 90, 0), ((10, 1), 0, 0), ((3, 1), 0, 70)]
)
def test_bits_do_not_depend_on_the_batch_or_the_pieces(
    heads: tuple[int, int], window: int, chunk: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    """Alone, a few queries are widened where many are not, and threads share out the tiles of their keys."""
    sequences = ((0, 130), (390, 1), (250, 9), (127, 2), (0, 1))
    case = AttentionCase(sequences, *heads, head_dim, window=window, dtype=dtype, cache_dtype=cache_dtype, chunk=chunk)
    inputs = make_inputs(case)
    together = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    for index, (_, new) in enumerate(sequences):
        start = int(inputs.batch.query_start[index])
        for piece in {new, 50, 3, 1} if new > 1 else {1}:
            for skip in range(0, new, piece):
                part = only(inputs, index, skip, min(piece, new - skip))
                alone = OPS.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
                assert torch.equal(alone, together[start + skip : start + skip + alone.shape[0]])


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [*[(torch.float32, cache) for cache in CACHES], (torch.bfloat16, torch.bfloat16)]
)
def test_bits_of_queries_that_see_both_ways_do_not_depend_on_the_batch(
    dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    """Alone, and of the last queries alone: tiles of keys after a query, and those that none of a few sees, count."""
    sequences = ((0, 130), (390, 1), (250, 9), (0, 300))
    for heads, window, reach in (((3, 1), 0, 0), ((2, 2), 90, 40), ((10, 1), 7, 0), ((1, 1), 0, 200)):
        case = AttentionCase(sequences, *heads, 32, window=window, dtype=dtype, cache_dtype=cache_dtype)
        case = replace(case, sees=Sees.BOTH_WAYS, reach=reach)
        inputs = make_inputs(case)
        together = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
        for index, (_, new) in enumerate(sequences):
            end = int(inputs.batch.query_start[index + 1])
            for last in {new, new // 2 + 1, 3, 1} if new > 1 else {1}:
                part = only(inputs, index, new - last)
                alone = OPS.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
                assert torch.equal(alone, together[end - last : end])


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [*[(torch.float32, cache) for cache in CACHES], (torch.bfloat16, torch.bfloat16)]
)
def test_queries_may_outnumber_the_keys_that_all_of_them_see(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    """Keys of another text than the queries': each query gets what it gets alone, bit for bit."""
    sequences = ((200, 1), (-1, 2), (-130, 150), (100, 60))
    for heads in ((2, 2), (3, 1)):
        case = AttentionCase(sequences, *heads, 32, dtype=dtype, cache_dtype=cache_dtype, sees=Sees.BOTH_WAYS)
        checks.check_attention(OPS, case, "cpu")
        inputs = make_inputs(case)
        together = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
        for index in range(len(sequences)):
            end = int(inputs.batch.query_start[index + 1])
            part = only(inputs, index, sequences[index][1] - 1)
            alone = OPS.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
            assert torch.equal(alone, together[end - 1 : end])


@pytest.mark.parametrize(("dtype", "cache_dtype"), list(itertools.product(FLOATS, CACHES)))
def test_stored_rows_equal_the_reference_bit_for_bit(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    for head_dim in (4, 20, 64, 80):
        generator = torch.Generator().manual_seed(head_dim)
        packed = torch.randn((40, 5, head_dim), generator=generator).to(dtype)
        packed[3] = 0.0
        packed[4] *= 1e-4
        packed[5, :, 0] = 127.0  # the scale is 1: halves are ties
        packed[5, :, 1:] = torch.arange(head_dim - 1) + 0.5
        packed[6] *= 30.0
        packed[7, :, 0] = 448.0  # of E4M3 the scale is 1: 17, 19, ... are ties
        packed[7, :, 1:] = torch.arange(head_dim - 1) + 16.0
        width = LayerKV(2, head_dim).row_width(NAMES[cache_dtype])
        slots = torch.randperm(7 * 8, generator=generator)[:40]
        for fixed in (OWN_SCALES, (0.02, 0.5)):
            written = []
            for ops in (OPS, checks.REFERENCE):
                caches = [torch.zeros((7, 2, 8, width), dtype=cache_dtype) for _ in range(2)]
                ops.write_kv((packed[:, :2], packed[:, 3:]), (caches[0], caches[1]), slots, fixed)
                written.append(caches)
            for ours, reference in zip(*written, strict=True):
                assert torch.equal(ours.view(torch.uint8), reference.view(torch.uint8))


STEPS = {torch.int8: 1 / 254, torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3, torch.uint8: 2 / 29}


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_row_keeps_a_number_that_is_none(wrong: float, dtype: torch.dtype) -> None:
    k = torch.randn(2, 1, 32)
    k[0, 0, 7] = wrong
    cache = torch.zeros((1, 1, 8, LayerKV(1, 32).row_width(NAMES[dtype])), dtype=dtype)
    OPS.write_kv((k, k), (cache, cache.clone()), torch.tensor([0, 1]))
    rows = unpack_rows(cache, 32)[0, 0]
    assert not rows[0].isfinite().all()
    torch.testing.assert_close(rows[1], k[1, 0], rtol=0, atol=float(k[1].abs().max()) * STEPS[dtype])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_float8_is_read_as_what_it_is(dtype: torch.dtype) -> None:
    """Each as the value of a sequence of one key, whose weight is one; those that are no number are left out."""
    entries = torch.arange(256, dtype=torch.uint8)
    entries = torch.where(entries.view(dtype).float().isfinite(), entries, 0)
    scale = torch.tensor([0.5]).view(torch.uint8)
    case = AttentionCase(((0, 1),), 1, 1, 256, cache_dtype=dtype)
    inputs = make_inputs(case)
    row = torch.cat([entries, scale]).view(dtype)
    v = row.view(torch.uint8).expand(inputs.kv[1].shape).contiguous().view(dtype)
    ours = OPS.paged_attention(inputs.q, (inputs.kv[0], v), inputs.batch, 0, case.shape)
    assert torch.equal(ours[0, 0], entries.view(dtype).float() * 0.5)


def test_a_lower_instruction_set_multiplies_float16_as_float32() -> None:
    case = AttentionCase(((0, 70), (260, 1)), 6, 2, 64, cache_dtype=torch.float16)
    checks.check_attention(CpuOps(Calls(2), next(iter(instruction_sets()))), case, "cpu")
