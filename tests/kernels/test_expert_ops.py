"""Experts in C and in Triton against the reference; and a token's bits depend on that token alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret_rows  # isort: skip - before anything that imports triton

from cadence.device.calls import Calls
from cadence.kernels.cpu.collectives import CollectiveMemory, CpuCollectives
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import RankPlace
from cadence.kernels.interface.expert_ops import ExpertOps, ExpertStack, Routes, Routing
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.triton.experts.expert_tiles import ExpertTiles
from cadence.kernels.triton.ops import TritonOps
from cadence.models.layers.rank_share import part_of
from tests.helpers.kernel_checks import assert_close

pytestmark = pytest.mark.device

CPU, TRITON, REFERENCE = CpuOps(Calls(2)), TritonOps(deterministic=True), ReferenceOps()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NARROW = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter takes products of bfloat16 for others
TYPED = [("c", dtype) for dtype in DTYPES] + [("triton", torch.float32), ("triton", NARROW)]
HIDDEN, WIDTH, EXPERTS, TOP_K = 40, 24, 6, 3
Product = Callable[[torch.Tensor, Routes, ExpertStack, bool], torch.Tensor]


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stack_of(dtype: torch.dtype, first: int = 0, count: int = EXPERTS) -> ExpertStack:
    gate_up = drawn(1, EXPERTS, 2 * WIDTH, HIDDEN) / HIDDEN**0.5
    down = drawn(2, EXPERTS, HIDDEN, WIDTH) / WIDTH**0.5
    own = slice(first, first + count)
    return ExpertStack(gate_up[own].to(dtype).contiguous(), down[own].to(dtype).contiguous(), first)


def routes_of(tokens: int) -> Routes:
    """Expert 1 gets nobody."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand((tokens, EXPERTS - 1), generator=generator).argsort(dim=1)[:, :TOP_K]
    ids = torch.where(ids >= 1, ids + 1, ids)
    return ids.to(torch.int32), drawn(tokens, tokens, TOP_K).softmax(dim=-1)


def packed_product(method: str) -> Product:
    def product(x: torch.Tensor, routes: Routes, stack: ExpertStack, gelu: bool) -> torch.Tensor:
        packer = CPU.packer(method, x.dtype, x.device)

        def matrix(values: torch.Tensor, parts: int) -> object:
            return packer.stack([packer.pack_values(part, True) for part in values.chunk(parts)])

        pairs = [(matrix(g, 2), matrix(d, 1)) for g, d in zip(stack.gate_up, stack.down, strict=True)]
        return CPU.experts.packed(pairs, stack.first, x.dtype).product(x, routes, gelu)  # type: ignore[arg-type]

    return product


def triton_product(x: torch.Tensor, routes: Routes, stack: ExpertStack, gelu: bool) -> torch.Tensor:
    ids, shares = (each.to(DEVICE) for each in routes)
    there = ExpertStack(stack.gate_up.to(DEVICE), stack.down.to(DEVICE), stack.first)
    return TRITON.experts.product(x.to(DEVICE), (ids, shares), there, gelu).cpu()


PRODUCTS: dict[str, Product] = {"c": packed_product("none"), "triton": triton_product}


SIZED = [(tokens, *typed) for tokens in (1, 2, 37) for typed in TYPED]
FEW = [(1, "triton", NARROW), (37, "triton", torch.float32)]


@pytest.mark.parametrize(
    ("tokens", "name", "dtype"), interpret_rows(SIZED, [x for x in SIZED if x[1] == "c" or x in FEW])
)
def test_products_match_the_reference(tokens: int, name: str, dtype: torch.dtype) -> None:
    x, routes = drawn(5, tokens, HIDDEN).to(dtype), routes_of(tokens)
    for gelu in (False, True):
        for stack in (stack_of(dtype), stack_of(dtype, 2, 3), stack_of(dtype, 1, 1)):
            assert_close(PRODUCTS[name](x, routes, stack, gelu), REFERENCE.experts.product(x, routes, stack, gelu))


@pytest.mark.parametrize("name", PRODUCTS)
def test_experts_of_others_add_nothing(name: str) -> None:
    x, routes = drawn(5, 4, HIDDEN), routes_of(4)
    alone = PRODUCTS[name](x, routes, stack_of(torch.float32, 1, 1), False)
    assert torch.equal(alone, torch.zeros_like(x))


@pytest.mark.parametrize("method", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_whoever_comes_with_it(dtype: torch.dtype, method: str) -> None:
    products = [packed_product(method), *([triton_product] if method == "none" else [])]
    x, (ids, shares), stack = drawn(7, 33, HIDDEN).to(dtype), routes_of(33), stack_of(dtype)
    for product in products:
        together = product(x, (ids, shares), stack, False)
        for some in (slice(0, 1), slice(32, 33), slice(5, 12)):
            assert torch.equal(together[some], product(x[some], (ids[some], shares[some]), stack, False))


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_quantised_experts_are_near(method: str) -> None:
    x, routes, stack = drawn(7, 9, HIDDEN), routes_of(9), stack_of(torch.float32)
    exact = REFERENCE.experts.product(x, routes, stack, False)
    error = (packed_product(method)(x, routes, stack, False) - exact).norm() / exact.norm()
    assert 0 < error < {"int8": 0.02, "int4": 0.2}[method]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
@pytest.mark.parametrize(("renormalise", "sigmoid"), [(True, False), (False, False), (False, True)])
def test_routes_are_those_of_the_reference(renormalise: bool, sigmoid: bool, name: str, dtype: torch.dtype) -> None:
    """In types of few bits, logits that are near each other may change places."""
    ops, where = (CPU.experts, "cpu") if name == "c" else (TRITON.experts, DEVICE)
    for width, experts, top_k in ((33, 6, 3), (64, 13, 1), (40, 4, 4)):
        x, weight = drawn(9, 21, width).to(dtype), drawn(3, experts, width).to(dtype)
        routing = Routing(top_k, renormalise, rounded=dtype is torch.bfloat16, sigmoid=sigmoid)
        ids, shares = ops.route(x.to(where), weight.to(where), routing)
        expected = REFERENCE.experts.route(x, weight, routing)
        assert ids.dtype == torch.int32 and shares.dtype == torch.float32
        assert ids.is_contiguous() and shares.is_contiguous(), "kernels take them for that"
        assert dtype is not torch.float32 or torch.equal(ids.cpu(), expected[0])
        torch.testing.assert_close(shares.cpu(), expected[1], rtol=0.1 if dtype is torch.bfloat16 else 0.01, atol=1e-3)
        alone = ops.route(x[4:5].to(where), weight.to(where), routing)
        assert torch.equal(alone[1], shares[4:5]) and torch.equal(alone[0], ids[4:5])


@pytest.mark.parametrize("ops", [CPU.experts, REFERENCE.experts], ids=["c", "reference"])
def test_of_logits_whose_sigmoids_are_all_one_the_highest_counts(ops: ExpertOps) -> None:
    x, weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[40.0, -3.0], [50.0, -1.0], [45.0, -2.0]])
    ids, shares = ops.route(x, weight, Routing(2, renormalise=False, rounded=False, sigmoid=True))
    assert ids.tolist() == [[1, 2], [1, 2]] and shares[0].tolist() == [1.0, 1.0]
    torch.testing.assert_close(shares[1], torch.sigmoid(torch.tensor([-1.0, -2.0])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["c", "triton"])
def test_weighed_inputs_are_those_of_the_reference_and_shares_are_gone(name: str, dtype: torch.dtype) -> None:
    ops, where = (CPU.experts, "cpu") if name == "c" else (TRITON.experts, DEVICE)
    wide = drawn(8, 21, 2 * HIDDEN + 3).to(dtype)
    x, ids, shares = wide[:, 2 : 2 + HIDDEN], routes_of(21)[0][:, :1].contiguous(), drawn(4, 21, 1).sigmoid()
    weighed, (same, ones) = ops.weigh_inputs(x.to(where), (ids.to(where), shares.to(where)))
    assert torch.equal(weighed.cpu(), (x.float() * shares).to(dtype)) and weighed.dtype is dtype
    assert torch.equal(same.cpu(), ids) and torch.equal(ones.cpu(), torch.ones(21, 1))


@pytest.mark.parametrize("ops", [CPU.experts, REFERENCE.experts], ids=["c", "reference"])
def test_among_equals_the_lower_id_counts_and_of_nothing_ids_are_experts(ops: ExpertOps) -> None:
    routing = Routing(2, renormalise=True, rounded=False)
    x = torch.stack([torch.zeros(8), torch.full((8,), float("nan")), torch.full((8,), float("inf"))])
    ids, shares = ops.route(x, drawn(1, 5, 8), routing)
    assert ids[0].tolist() == [0, 1] and shares[0].tolist() == [0.5, 0.5]
    assert ids.min() >= 0 and ids.max() < 5 and len(set(ids[1].tolist())) == 2


def test_a_recorded_product_serves_other_routes() -> None:
    calls = Calls(1)
    ops = CpuOps(calls)
    packer, stack = ops.packer("none", torch.float32, torch.device("cpu")), stack_of(torch.float32)
    pairs = [
        tuple(packer.stack([packer.pack_values(values, True)]) for values in both)
        for both in zip(stack.gate_up, stack.down, strict=True)
    ]
    experts = ops.experts.packed(pairs, 0, torch.float32)  # type: ignore[arg-type]
    router, routing = drawn(3, EXPERTS, HIDDEN), Routing(TOP_K, renormalise=True, rounded=False)
    x = drawn(1, 5, HIDDEN)

    def work() -> torch.Tensor:
        return experts.product(x, ops.experts.route(x, router, routing), False)

    graph, _ = calls.record(work)
    x.copy_(drawn(2, 5, HIDDEN))
    again = graph.replay(work).clone()
    assert type(graph).__name__ == "CommandGraph" and torch.equal(again, work())


def test_tiles_have_every_pair_once_under_its_expert() -> None:
    ids, _ = routes_of(40)
    tiles = ExpertTiles.of(ids, 2, 3)
    found = {}
    for expert, pairs in zip(tiles.experts.tolist(), tiles.pairs.tolist(), strict=True):
        for pair in pairs:
            if pair < tiles.num_pairs:
                assert pair not in found
                found[pair] = expert + 2
    assert found == {pair: expert for pair, expert in enumerate(ids.flatten().tolist()) if expert in (2, 3, 4)}


class SmallArea:
    """Of ranks in this process; a piece has room for few lines."""

    def __init__(self, num_ranks: int, slot_bytes: int) -> None:
        functions = CollectiveMemory(load_library())
        self._memory = torch.zeros(functions.num_bytes(num_ranks, slot_bytes) + 4096, dtype=torch.uint8)
        self.address = -(-self._memory.data_ptr() // 4096) * 4096
        functions.init(self.address, num_ranks, slot_bytes)


@pytest.mark.parametrize("slot_bytes", [1024, 1 << 16])
@pytest.mark.parametrize(("dtype", "method"), [(torch.float32, "none"), (torch.bfloat16, "int8")])
@pytest.mark.parametrize("counts", [(3, 1), (1, 40, 7), (5, 0), (17, 17, 1, 2)])
def test_ranks_that_share_experts_get_the_bits_of_one_that_has_all(
    counts: tuple[int, ...], dtype: torch.dtype, method: str, slot_bytes: int
) -> None:
    area = SmallArea(len(counts), slot_bytes)
    stack, of_ranks = stack_of(dtype), [(drawn(7 + r, n, HIDDEN).to(dtype), routes_of(n)) for r, n in enumerate(counts)]

    def on_rank(rank: int) -> list[torch.Tensor]:
        calls = Calls(1)
        ops, ranks = CpuOps(calls), RankPlace(rank, len(counts))
        collectives = CpuCollectives(calls, CpuLibrary(calls), area, rank, len(counts))
        packer, own = ops.packer(method, dtype, torch.device("cpu")), part_of(EXPERTS, ranks)

        def matrix(values: torch.Tensor) -> PackedMatrix:
            return packer.stack([packer.pack_values(values, True)])

        pairs = [(matrix(stack.gate_up[e]), matrix(stack.down[e])) for e in own]
        shared = ops.experts.shared(pairs, own.start, EXPERTS, collectives)
        found = [shared.product(x, routes, False) for x, routes in (of_ranks[rank], of_ranks[rank])]
        collectives.check()
        return found

    with ThreadPoolExecutor(len(counts)) as pool:
        shared = list(pool.map(on_rank, range(len(counts))))
    for (x, routes), found in zip(of_ranks, shared, strict=True):
        alone = packed_product(method)(x, routes, stack, False)
        assert all(torch.equal(each, alone) for each in found)
