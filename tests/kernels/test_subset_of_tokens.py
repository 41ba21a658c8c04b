"""A token's bits do not depend on the tokens beside it: every op gives some tokens the bits that it gives them among
all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.experts import CpuExpertOps
from cadence.kernels.cpu.lora import CpuLoraOps
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.products import PackedProducts
from cadence.kernels.cpu.packed.weights import PackedRows
from cadence.kernels.cpu.states import CpuStateOps
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.reference.kv_rows import QUANTISED
from tests.helpers.kernel_cases import AttentionCase, AttentionInputs, make_inputs
from tests.helpers.packed_kinds import EVERY, make, make_x
from tests.helpers.packing import instruction_sets
from tests.helpers.token_ops import EVERY_OP, FLOATS, SHUFFLED, TOKENS, Tensors, drawn
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.device

ISAS = list(instruction_sets())
SUBSETS = [*([at] for at in (0, 37, 69)), *(range(at, at + n) for at, n in ((1, 2), (66, 3), (5, 5), (30, 33)))]
OF_THEIR_OWN = {"packed.linear", "paged_attention"}  # tests below
OTHERS = {
    "packer": "of weights",
    "packed.values": "of weights",
    "lora.arranged": "of weights",
    "zeros_like": "no input",
    "lora.token_slots": "integers",
    "linear": "torch's: models on a CPU have packed matrices alone",
    "linear_terms": "torch's",
    "logits": "torch's",
    "add_norm_linear": "torch's, after add_rms_norm",
    "add_norm_gated": "torch's, after add_rms_norm",
    "experts.product": "the reference's",
    "states.short_conv": "of runs: test_state_ops.py",
    "states.scan": "of runs",
    "states.head_scan": "of runs",
    "states.delta_rule": "of runs",
    "experts.shared": "as experts.packed, among processes",
}


@cache
def ops_of(isa: str) -> CpuOps:
    return CpuOps(Calls(2), isa)


def test_no_op_is_forgotten() -> None:
    def public(kind: type, prefix: str = "") -> set[str]:
        return {prefix + name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))}

    parts = {"packed.": PackedProducts, "lora.": CpuLoraOps, "experts.": CpuExpertOps, "states.": CpuStateOps}
    found = public(CpuOps).union(*(public(kind, prefix) for prefix, kind in parts.items()))
    assert found == EVERY_OP.keys() | OF_THEIR_OWN | OTHERS.keys()


def check(op: Callable[[torch.Tensor], Tensors]) -> None:
    whole = op(torch.arange(TOKENS))
    for at in (*map(torch.tensor, SUBSETS), SHUFFLED):
        for alone, among in zip(op(at), whole, strict=True):
            assert torch.equal(alone, among[at])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EVERY_OP)
def test_every_op(name: str, dtype: torch.dtype) -> None:
    for isa in ISAS if name == "experts.packed" else ("auto",):  # the others have one form
        check(lambda at, isa=isa: EVERY_OP[name](ops_of(isa), dtype, at))


NARROW = (torch.bfloat16, None, None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", EVERY)
def test_products_with_packed_weights(kind: str, isa: str) -> None:
    packed, products = PackedRows([make(kind, 34, 768)]), ops_of(isa).packed
    for dtype, bias, out in ((torch.float32, None, None), (torch.bfloat16, drawn(1, 34), torch.float32), NARROW):
        x = make_x(TOKENS, 768, dtype)
        check(lambda at, x=x, bias=bias, out=out: [products.linear(x[at], packed, bias, out)])


SEQUENCES = ((0, 9), (131, 4), (40, 1), (120, 18))  # tokens that are cached, tokens of this step
RUNS = [  # (sequence, first token, tokens)
    *([(index, 0, new)] for index, (_, new) in enumerate(SEQUENCES)),
    [(index, new - 1, 1) for index, (_, new) in enumerate(SEQUENCES)],
    *([(index, new - 1, 1)] for index, (_, new) in enumerate(SEQUENCES)),
    [(0, 2, 5)],
    [(1, 1, 2)],
    [(3, 1, 3), (2, 0, 1), (0, 4, 2), (1, 0, 3)],
    [(3, at, 1) for at in range(17, -1, -1)],
]


def part_of(inputs: AttentionInputs, runs: list[tuple[int, int, int]]) -> tuple[AttentionInputs, torch.Tensor]:
    """These runs as a step, and the places of their tokens in the whole."""
    batch, which = inputs.batch, torch.tensor([index for index, _, _ in runs])
    counts = [take for _, _, take in runs]
    left = torch.tensor([SEQUENCES[index][1] - skip - take for index, skip, take in runs], dtype=torch.int32)
    at = torch.cat([int(batch.query_start[index]) + skip + torch.arange(take) for index, skip, take in runs])
    some = AttentionBatch(
        rows=batch.rows[which],
        query_start=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=batch.seq_lens[which] - left,
        block_tables=batch.block_tables,
        slots=batch.slots,
        num_single=sum(count == 1 for count in counts) if max(counts) == 1 else 0,
        max_query_len=max(counts),
    )
    return AttentionInputs(inputs.q[at], inputs.kv, some), at


CACHES = [(torch.float32, dtype) for dtype in (*FLOATS, *QUANTISED)] + [(dtype, dtype) for dtype in FLOATS[1:]]


@pytest.mark.parametrize("head_dim", mostly_wide([16, 24, 64, 128], [24, 64]))
@pytest.mark.parametrize("group", mostly_wide([1, 2, 3, 4, 8], [1, 3, 8]))
@pytest.mark.parametrize(("dtype", "cache_dtype"), CACHES)
def test_attention(dtype: torch.dtype, cache_dtype: torch.dtype, group: int, head_dim: int) -> None:
    case = AttentionCase(SEQUENCES, group, 1, head_dim, dtype=dtype, cache_dtype=cache_dtype)
    inputs = make_inputs(case)
    parts = [part_of(inputs, runs) for runs in RUNS]
    forms = ((0, 0.0, 0, 0), (50, 0.0, 33, 0), (7, 30.0, 0, 0), (0, 0.0, 0, 45))
    for isa, (window, softcap, reach, chunk) in product((ISAS[0], ISAS[-1]), forms):
        ops, shape = ops_of(isa), replace(case, window=window, softcap=softcap, reach=reach, chunk=chunk).shape
        whole = ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, shape)
        for part, at in parts:
            assert torch.equal(ops.paged_attention(part.q, part.kv, part.batch, 0, shape), whole[at])
