"""Attention on Triton against the reference: on a GPU where there is one, else tiny shapes in the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret, interpret_rows  # isort: skip - before anything that imports triton

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape, Sees
from cadence.kernels.triton.attention.attention import PagedAttention
from cadence.kernels.triton.attention.attention_split import choose_single_tile, choose_split_tile
from cadence.runner.shapes import is_rung, padded_sizes
from tests.helpers import kernel_checks as checks
from tests.helpers.kernel_cases import AttentionCase, make_inputs, only

pytestmark = pytest.mark.device


class TritonAttention:
    def __init__(self, deterministic: bool = False) -> None:
        self.attention = PagedAttention(deterministic)

    def paged_attention(
        self,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        batch: AttentionBatch,
        group: int,
        shape: AttentionShape,
    ) -> torch.Tensor:
        return self.attention.run(q, kv, batch, group, shape)


PROCESSORS = 132
FAST, FIXED = TritonAttention(), TritonAttention(deterministic=True)

SMALL = {
    "one prefill": AttentionCase(((0, 5),), head_dim=16),
    "long prefill": AttentionCase(((0, 140), (65, 70)), 2, 1, 16),
    "decodes before prompts": AttentionCase(((30, 1), (0, 1), (0, 90), (63, 2), (5, 1)), 4, 2, 16),
    "decode, three heads per kv head": AttentionCase(((30, 1), (0, 1), (90, 1)), 9, 3, 32),
    "split decode": AttentionCase(((700, 1), (20, 1)), 3, 1, 16),
    "split chunk of a prompt": AttentionCase(((560, 7), (10, 3)), 2, 1, 16),
    "split with window": AttentionCase(((700, 1), (20, 1)), 2, 1, 16, window=300),
    "split chunk with window": AttentionCase(((300, 9), (70, 1)), 4, 1, 16, block_size=8, window=70),
    "window": AttentionCase(((100, 150), (70, 1)), 1, 1, 16, block_size=8, window=90),
    "window of one": AttentionCase(((3, 70),), 1, 1, 16, window=1),
    "chunk": AttentionCase(((100, 70), (70, 1), (95, 1)), 2, 1, 16, block_size=8, chunk=48),
    "split with chunk": AttentionCase(((700, 1), (299, 9), (600, 1)), 2, 1, 16, chunk=300),
    "other layers between blocks": AttentionCase(((30, 1), (0, 70), (560, 7)), 2, 1, 16, window=300, apart=48),
    "soft-cap": AttentionCase(((0, 70), (20, 1)), 1, 1, 20, softcap=5.0),
    "pages larger than tiles": AttentionCase(((70, 1), (0, 70)), 1, 1, 16, block_size=128),
    "half, odd head, two groups": AttentionCase(((30, 1), (0, 70)), 4, 1, 80, 4, dtype=torch.float16, num_groups=2),
    "both ways": AttentionCase(((30, 1), (0, 50), (20, 3)), 2, 1, 16, sees=Sees.BOTH_WAYS),
    "both ways, window, bias": AttentionCase(((0, 90),), 2, 1, 16, window=40, sees=Sees.BOTH_WAYS, reach=9),
    "both ways, split": AttentionCase(((560, 5), (0, 3)), 3, 1, 16, sees=Sees.BOTH_WAYS, reach=300),
    "more queries than keys": AttentionCase(((40, 1), (-30, 50), (-2, 3)), 2, 1, 16, sees=Sees.BOTH_WAYS),
    "more queries than keys, split": AttentionCase(((300, 1), (-4, 9), (-1, 3)), 2, 1, 16, sees=Sees.BOTH_WAYS),
    "both ways, split, window": AttentionCase(((300, 9), (70, 3)), 2, 1, 16, window=5, sees=Sees.BOTH_WAYS),
    "bias": AttentionCase(((290, 1), (0, 40)), 3, 1, 16, reach=30),
}


# Of those left out, each way through a kernel is among these.
LEFT_OUT = ("one prefill", "decode, three heads per kv head", "split chunk of a prompt", "split with window")
LEFT_OUT += ("half, odd head, two groups", "long prefill", "both ways, split, window")


@pytest.mark.parametrize("name", interpret(SMALL, [name for name in SMALL if name not in LEFT_OUT]))
def test_attention_matches_the_reference(name: str) -> None:
    checks.check_attention(FAST, SMALL[name], DEVICE)
    checks.check_attention(FIXED, SMALL[name], DEVICE)
    state = FAST.attention.state(torch.empty(0, device=DEVICE).device)
    assert not state.counters.any(), "arrivals are counted from zero again"


def test_what_queries_see_is_known_or_refused() -> None:
    case = SMALL["one prefill"]
    inputs = make_inputs(case, DEVICE)
    with pytest.raises(KeyError, match="a prefix"):
        FAST.paged_attention(inputs.q, inputs.kv, replace(inputs.batch, sees="a prefix"), 0, case.shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 8, 16, 32])
def test_no_number_of_sequences_needs_a_tile_that_captured_sizes_do_not(kv_heads: int) -> None:
    """What was compiled when decodes were captured serves steps of any number of rows."""
    shape = AttentionShape(num_heads=32, num_kv_heads=kv_heads, head_dim=128, scale=1.0)
    ladder = [size for size in padded_sizes(1024) if is_rung(size)]
    for size in (1, 2, 4):
        for choose in (choose_split_tile, choose_single_tile):
            met = {choose(count, shape, size, PROCESSORS) for count in ladder}
            assert {choose(count, shape, size, PROCESSORS) for count in range(1, 1025)} <= met


def test_few_sequences_are_split_and_lengths_do_not_matter() -> None:
    shape = AttentionShape(32, 8, 128, 1.0)
    splits = [choose_split_tile(count, shape, 2, PROCESSORS).splits for count in (1, 8, 16, 40, 64, 256, 10_000)]
    assert splits == [16, 8, 4, 4, 2, 1, 1]
    splits = [choose_single_tile(count, shape, 1, PROCESSORS).splits for count in (1, 8, 16, 40, 64, 256, 10_000)]
    assert splits == [16, 8, 4, 1, 1, 1, 1]


def check_bits(case: AttentionCase, chunks: tuple[int, ...], every: int) -> None:
    """Each sequence alone, and cut into chunks, has the bits it has in the batch; of chunks of one, `every` n-th."""
    inputs = make_inputs(case, DEVICE)
    together = FIXED.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    for index, (_, new) in enumerate(case.sequences):
        start = int(inputs.batch.query_start[index])
        for chunk in {new, *chunks}:
            for skip in range(0, new, chunk * (every if chunk == 1 else 1)):
                part = only(inputs, index, skip, min(chunk, new - skip))
                alone = FIXED.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
                assert torch.equal(alone, together[start + skip : start + skip + alone.shape[0]])


@pytest.mark.parametrize(("window", "chunk"), interpret_rows([(0, 0), (70, 0), (0, 45)], [(70, 0), (0, 45)]))
def test_fixed_bits_do_not_depend_on_the_batch_or_the_pieces(window: int, chunk: int) -> None:
    sequences = ((80, 1), (0, 150), (64, 40)) if DEVICE == "cuda" else ((70, 1), (20, 60))
    check_bits(AttentionCase(sequences, 3, 1, 16, window=window, chunk=chunk), (37, 1), 29)


def check_bits_both_ways(case: AttentionCase, last: int) -> None:
    """Each sequence alone, and its last queries alone, have the bits they have in the batch."""
    inputs, shape = make_inputs(case, DEVICE), case.shape_on(DEVICE)
    together = FIXED.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, shape)
    for index, (_, new) in enumerate(case.sequences):
        end = int(inputs.batch.query_start[index + 1])
        for count in {new, last}:
            part = only(inputs, index, new - count)
            alone = FIXED.paged_attention(part.q, part.kv, part.batch, 0, shape)
            assert torch.equal(alone, together[end - count : end])


def test_fixed_bits_of_queries_that_see_both_ways() -> None:
    case = AttentionCase(((0, 70), (5, 9)), 2, 1, 16, window=40, sees=Sees.BOTH_WAYS, reach=9)
    check_bits_both_ways(case, 7)


MIXTURE = ((1700, 1), (33, 1), (0, 1), (0, 300), (500, 77), (3, 1), (1023, 2))
DECODE = ((1700, 1), (33, 1), (2047, 1))
FEW = ((1700, 3), (33, 1), (0, 4))
SHAPES = {  # heads, kv heads, head size, block size, window, soft-cap, dtype
    "8B": (32, 8, 128, 16, 0, 0.0, torch.bfloat16),
    "8B window": (32, 8, 128, 16, 100, 0.0, torch.bfloat16),
    "half": (16, 8, 128, 32, 0, 0.0, torch.float16),
    "float": (8, 2, 128, 16, 1024, 0.0, torch.float32),
    "small": (9, 3, 64, 16, 0, 0.0, torch.bfloat16),
    "small float": (9, 3, 64, 16, 0, 0.0, torch.float32),
    "many heads per group": (32, 2, 64, 16, 1, 0.0, torch.bfloat16),
    "one head": (1, 1, 80, 16, 0, 50.0, torch.bfloat16),
    "96": (6, 2, 96, 8, 0, 30.0, torch.float16),
    "256": (8, 4, 256, 16, 512, 50.0, torch.bfloat16),
    "256 float": (4, 1, 256, 16, 0, 0.0, torch.float32),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_attention_on_the_gpu(name: str) -> None:
    heads, kv_heads, dim, block, window, softcap, dtype = SHAPES[name]
    for sequences in (MIXTURE, DECODE, FEW):
        case = AttentionCase(sequences, heads, kv_heads, dim, block, window, softcap, dtype)
        checks.check_attention(FAST, case, DEVICE)
        checks.check_attention(FIXED, case, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("reach", [0, 60])
@pytest.mark.parametrize("sees", Sees)
@pytest.mark.parametrize("name", ["8B", "8B window", "half", "small float", "256", "many heads per group"])
def test_what_is_seen_and_added_on_the_gpu(name: str, sees: Sees, reach: int) -> None:
    heads, kv_heads, dim, block, window, _, dtype = SHAPES[name]
    for sequences in (MIXTURE, DECODE, FEW):
        case = AttentionCase(sequences, heads, kv_heads, dim, block, window, dtype=dtype, sees=sees, reach=reach)
        checks.check_attention(FAST, case, DEVICE)
        checks.check_attention(FIXED, case, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "dtype"), [((32, 8), torch.bfloat16), ((3, 3), torch.float32)])
@pytest.mark.parametrize("window", [0, 200])
def test_fixed_bits_both_ways_on_the_gpu(window: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    case = AttentionCase(((0, 900), (0, 33), (64, 140)), *heads, 128, window=window, dtype=dtype, reach=50)
    check_bits_both_ways(replace(case, sees=Sees.BOTH_WAYS), 29)


@pytest.mark.gpu
def test_many_decodes_at_once_on_the_gpu() -> None:
    lengths = torch.randint(1, 900, (150,), generator=torch.Generator().manual_seed(0)).tolist()
    case = AttentionCase(tuple((n, 1) for n in lengths), 8, 2, 128, dtype=torch.bfloat16)
    for _ in range(5):  # the merge is a race that must always end the same way
        checks.check_attention(FAST, case, DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "dtype"), [((32, 8), torch.bfloat16), ((3, 3), torch.float32)])
@pytest.mark.parametrize("window", [0, 200])
def test_fixed_bits_on_the_gpu(window: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    check_bits(
        AttentionCase(((80, 1), (900, 1), (0, 700), (64, 140)), *heads, 128, window=window, dtype=dtype), (37, 1), 29
    )


@pytest.mark.gpu
@pytest.mark.parametrize("fixed", [False, True])
def test_a_captured_launch_follows_the_lengths(fixed: bool) -> None:
    ops = FIXED if fixed else FAST
    case = AttentionCase(tuple((n, 1) for n in (40, 700, 1900, 5)), 16, 8, 128, dtype=torch.bfloat16)
    inputs = make_inputs(case, DEVICE)
    lens = inputs.batch.seq_lens.clone()
    batch = replace(inputs.batch, seq_lens=lens)
    ops.paged_attention(inputs.q, inputs.kv, batch, 0, case.shape)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.paged_attention(inputs.q, inputs.kv, batch, 0, case.shape)
    on_host = make_inputs(case)
    for shorter in (0, 1, 4, 38, 3):
        new_lens = torch.clamp(on_host.batch.seq_lens - shorter * torch.tensor([1, 18, 40, 1]), min=1).int()
        lens.copy_(new_lens)
        graph.replay()
        host_batch = replace(on_host.batch, seq_lens=new_lens)
        reference = checks.REFERENCE.paged_attention(on_host.q, on_host.kv, host_batch, 0, case.shape)
        checks.assert_close(out, reference)
