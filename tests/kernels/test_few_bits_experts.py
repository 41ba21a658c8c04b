"""Experts of few bits in Triton against the reference with the numbers that they hold; a token's bits are its own."""

from __future__ import annotations

from tests.helpers.triton_mode import DEVICE, interpret  # isort: skip - before anything that imports triton

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from cadence.gguf import block_size, values_of_blocks
from cadence.kernels.interface.expert_ops import ExpertStack, PackedExperts, Routes
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.triton.experts.expert_stacks import (
    BlockStack,
    DenseStack,
    FewBitsStack,
    MatrixStack,
    stacked_experts,
)
from cadence.kernels.triton.experts.expert_tiles import ExpertTiles
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix
from cadence.kernels.triton.ops import TritonOps
from tests.helpers.quantized_writers import bnb_table
from tests.helpers.random_blocks import tame_blocks

pytestmark = pytest.mark.device

OPS, REFERENCE = TritonOps(deterministic=True, packs=True), ReferenceOps()
NARROW = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter takes products of bfloat16 for others
HIDDEN, WIDTH, EXPERTS, TOP_K, TOKENS = 128, 64, 4, 2, 6
Held = tuple[PackedMatrix, torch.Tensor]  # and its numbers, float32
Maker = Callable[[torch.Tensor], Held]  # of values [rows, cols]


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantised(method: str, dtype: torch.dtype) -> Maker:
    packer = OPS.packer(method, dtype, torch.device(DEVICE))
    assert packer is not None
    return lambda values: shown(packer.stack([packer.pack_values(part, True) for part in values.chunk(2)]))


def shown(matrix: PackedMatrix) -> Held:
    return matrix, matrix.values(0, matrix.rows).cpu()


def numbers(kind: torch.dtype, group: int, dtype: torch.dtype, bits: int = 8, zeros: bool = False) -> Maker:
    """As checkpoints have them; group 0: rows."""
    packer = OPS.packer("checkpoint", dtype, torch.device(DEVICE))
    assert packer is not None

    def make(values: torch.Tensor) -> Held:
        rows, cols = values.shape
        runs = values.view(rows, -1, group or cols)
        most = {8: 120.0, 4: 7.0}[bits]
        scales = runs.abs().amax(2) / most
        found = (runs / scales.unsqueeze(2)).round().view(rows, cols)
        if kind is not torch.uint8:
            return shown(packer.stack([packer.pack_numbers(ScaledNumbers(found.to(kind), scales))]))
        own = torch.randint(5, 11, scales.shape, generator=torch.Generator().manual_seed(rows)) if zeros else 8
        shifted = (found + 8).clamp(0, 15).to(torch.uint8)
        return shown(packer.stack([packer.pack_numbers(ScaledNumbers(shifted, scales, own, bits))]))

    return make


def codes(kind: str, dtype: torch.dtype) -> Maker:
    """Into a table of bitsandbytes, with a scale for 64 columns."""
    packer, table = OPS.packer("checkpoint", dtype, torch.device(DEVICE)), bnb_table(kind)
    assert packer is not None

    def make(values: torch.Tensor) -> Held:
        runs = values.view(values.shape[0], -1, 64)
        scales = runs.abs().amax(2)
        found = (runs / scales.unsqueeze(2)).unsqueeze(3).sub(table).abs().argmin(3).view(values.shape)
        return shown(packer.stack([packer.pack_numbers(ScaledNumbers(found.byte(), scales, bits=4, table=table))]))

    return make


def blocks(kind: str, dtype: torch.dtype) -> Maker:
    packer = OPS.packer("gguf", dtype, torch.device(DEVICE))
    assert packer is not None

    def make(values: torch.Tensor) -> Held:
        count, rng = values.numel() // block_size(kind)[0], np.random.default_rng(int(values[0, 0] * 1e6) % 2**31)
        raw = torch.from_numpy(tame_blocks(kind, count, 0.06, rng)).view(torch.uint8).reshape(-1)
        held = values_of_blocks(kind, raw, tuple(values.shape))
        return packer.stack([packer.pack_blocks(kind, raw, *values.shape)]), held

    return make


KINDS: dict[str, tuple[Callable[[torch.dtype], Maker], type]] = {
    "fp8": (lambda dtype: quantised("fp8", dtype), FewBitsStack),
    "int8": (lambda dtype: quantised("int8", dtype), FewBitsStack),
    "int4": (lambda dtype: quantised("int4", dtype), FewBitsStack),
    "fp8, scales for 64": (lambda dtype: numbers(torch.float8_e4m3fn, 64, dtype), FewBitsStack),
    "int4 rows, zeros": (lambda dtype: numbers(torch.uint8, 0, dtype, 4, True), FewBitsStack),
    "int4 groups of 32": (lambda dtype: numbers(torch.uint8, 32, dtype, 4), FewBitsStack),
    "nf4": (lambda dtype: codes("nf4", dtype), FewBitsStack),
    "Q5_0": (lambda dtype: blocks("Q5_0", dtype), BlockStack),
    "IQ4_NL": (lambda dtype: blocks("IQ4_NL", dtype), BlockStack),
}


class Layer:
    """Experts [first, first + count) packed, and the numbers that they hold."""

    def __init__(self, make: Maker, dtype: torch.dtype, first: int = 0, count: int = EXPERTS) -> None:
        gate_up = drawn(1, EXPERTS, 2 * WIDTH, HIDDEN)[first : first + count] / HIDDEN**0.5
        down = drawn(2, EXPERTS, HIDDEN, WIDTH)[first : first + count] / WIDTH**0.5
        pairs = [(make(g), make(d)) for g, d in zip(gate_up, down, strict=True)]
        numbers = [torch.stack([pair[side][1] for pair in pairs]).to(dtype) for side in (0, 1)]
        self.stack = ExpertStack(numbers[0], numbers[1], first)
        self.packed: PackedExperts = OPS.experts.packed([(g[0], d[0]) for g, d in pairs], first, dtype)

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool = False) -> torch.Tensor:
        ids, shares = routes
        return self.packed.product(x.to(DEVICE), (ids.to(DEVICE), shares.to(DEVICE)), gelu).cpu()


def routes_of(tokens: int) -> Routes:
    """Expert 1 gets nobody."""
    ids = torch.rand((tokens, EXPERTS - 1), generator=torch.Generator().manual_seed(tokens)).argsort(dim=1)[:, :TOP_K]
    ids = torch.where(ids >= 1, ids + 1, ids)
    return ids.to(torch.int32), drawn(tokens, tokens, TOP_K).softmax(dim=-1)


@pytest.mark.parametrize("kind", interpret(KINDS, ["fp8, scales for 64", "int4 rows, zeros", "nf4", "Q5_0"]))
def test_products_are_those_of_the_numbers_alone_and_in_company(kind: str) -> None:
    """Of all experts, and of those of one rank among several."""
    make, (ids, shares) = KINDS[kind][0], routes_of(TOKENS)
    for dtype, first, error in ((torch.float32, 1, 1e-5), (NARROW, 0, 8e-3)):
        layer, x = Layer(make(dtype), dtype, first, EXPERTS - first), drawn(5, TOKENS, HIDDEN).to(dtype)
        found = layer.product(x, (ids, shares), True)
        expected = REFERENCE.experts.product(x, (ids, shares), layer.stack, True).float()
        assert (found.float() - expected).norm() < error * expected.norm()
        some = slice(3, 4)
        assert torch.equal(found[some], layer.product(x[some], (ids[some], shares[some]), True))


def stack_of(kinds: list[str]) -> MatrixStack:
    """Of an expert of each kind."""
    makers = [KINDS[kind][0](torch.float32) for kind in kinds]
    return stacked_experts([make(drawn(index, 64, 128))[0] for index, make in enumerate(makers)], torch.float32)


def test_experts_of_one_kind_keep_their_bits_and_others_become_tensors() -> None:
    for kind, (_, expected) in KINDS.items():
        found = stack_of([kind, kind, kind])
        assert type(found) is expected and found.count == 3
    for kinds in (["int4", "int8"], ["Q5_0", "int8"], ["int8", "fp8"], ["nf4", "int4"]):
        assert type(stack_of(kinds)) is DenseStack


def test_groups_may_differ() -> None:
    """As those of blocks that happen to have one scale."""
    coarse, values = KINDS["int8"][0](torch.float32)(drawn(1, 64, 128))
    assert isinstance(coarse, FewBitsMatrix)
    scales = coarse.stored.scales * torch.tensor([1.0, 2.0], device=DEVICE)
    fine = FewBitsMatrix(replace(coarse.stored, scales=scales), torch.float32, True, False)
    stack = stacked_experts([coarse, fine], torch.float32)
    x, ids = drawn(2, 2, 128).to(DEVICE), torch.tensor([[0], [1]], dtype=torch.int32, device=DEVICE)
    found = stack.product(x, ExpertTiles.of(ids, 0, 2), 1).cpu()
    wide = torch.cat([values[:, :64], 2 * values[:, 64:]], dim=1)
    assert type(stack) is FewBitsStack
    torch.testing.assert_close(found, torch.stack([x[0].cpu() @ values.T, x[1].cpu() @ wide.T]))
