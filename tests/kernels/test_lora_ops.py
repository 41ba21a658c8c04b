"""Adapters on top of products: every implementation against plain torch, and a line's bits in any company."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.triton_mode import DEVICE, interpret_rows, interpreted_examples  # isort: skip - before anything that imports triton

from cadence.device.calls import Calls, CommandGraph
from cadence.kernels.cpu.lora import CpuLoraOps
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.lora_ops import ENTRY_WORDS, NO_PART, NOTHING, LoraMap, LoraOps, LoraPart
from cadence.kernels.reference.lora import ReferenceLoraOps
from cadence.kernels.triton.linear.lora import TritonLoraOps
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

REFERENCE = ReferenceLoraOps()
SLOTS, MAX_RANK, FIRST, TOTAL = 4, 40, 2, 6  # parts of the map are some of the table's
NARROW = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter takes products of bfloat16 for others
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@cache
def calls() -> Calls:
    return Calls(2)


@cache
def implementations() -> dict[str, tuple[LoraOps, str]]:
    return {
        "cpu": (CpuLoraOps(calls(), CpuLibrary(calls())), "cpu"),
        "triton": (TritonLoraOps(), DEVICE),
    }


@dataclass(frozen=True)
class Case:
    """What a product and its adapters look like."""

    lines: int
    width: int
    parts: tuple[int, ...]  # their columns
    ranks: tuple[tuple[int, ...], ...]  # of each slot and part; 0: nothing there
    affine: tuple[int, ...] = (0,) * SLOTS  # of each slot: 1 has factors, 2 offsets, 3 both
    seed: int = 0
    dtype: torch.dtype = torch.float32  # of x and y
    stored: tuple[torch.dtype, ...] = (torch.float32,) * SLOTS  # of each slot


@dataclass
class Made:
    y: torch.Tensor
    x: torch.Tensor
    slots: torch.Tensor
    lora: LoraMap


def random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def part_of(case: Case, slot: int, part: int, generator: torch.Generator) -> LoraPart:
    rank, width = case.ranks[slot][part], case.parts[part]
    if not rank and not case.affine[slot]:
        return NO_PART
    dtype = case.stored[slot]
    a = (random(generator, rank, case.width) / case.width**0.5).to(dtype)
    b = random(generator, rank, width).to(dtype)
    factor = 1 + 0.3 * random(generator, width) if case.affine[slot] & 1 else NOTHING
    offset = random(generator, width) if case.affine[slot] & 2 else NOTHING
    return LoraPart(a, b, 0.7, factor, offset)


def to_device(part: LoraPart, device: str) -> LoraPart:
    moved = {name: getattr(part, name).to(device) for name in ("a", "b", "factor", "offset", "saved")}
    return replace(part, **moved)


def map_of(
    parts: dict[int, tuple[LoraPart, ...]],
    widths: tuple[int, ...],
    ops: LoraOps,
    device: str,
    dtype: torch.dtype,
    embedding: bool = False,
) -> LoraMap:
    entries = torch.zeros((SLOTS, TOTAL, ENTRY_WORDS), dtype=torch.int64)
    parts = {s: tuple(ops.arranged(part, embedding) for part in found) for s, found in parts.items()}
    moved = {slot: tuple(to_device(part, device) for part in found) for slot, found in parts.items()}
    for slot, found in moved.items():
        for index, part in enumerate(found):
            entries[slot, FIRST + index] = torch.tensor(part.words())
    starts = torch.tensor([0, *torch.tensor(widths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    return LoraMap(entries.to(device), FIRST, starts, widths, MAX_RANK, dtype, moved)


def make(case: Case, ops: LoraOps, device: str) -> Made:
    generator = torch.Generator().manual_seed(case.seed)
    parts = {s: tuple(part_of(case, s, p, generator) for p in range(len(case.parts))) for s in range(SLOTS)}
    lora = map_of(parts, case.parts, ops, device, case.dtype)
    slots = torch.randint(-1, SLOTS, (case.lines,), generator=generator).int()
    x = random(generator, case.lines, case.width).to(case.dtype)
    y = random(generator, case.lines, sum(case.parts)).to(case.dtype)
    return Made(y.to(device), x.to(device), slots.to(device), lora)


def close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    tolerance = TOLERANCE[reference.dtype]
    torch.testing.assert_close(ours.cpu().float(), reference.float(), rtol=tolerance, atol=tolerance * 4)


def check_add(name: str, case: Case) -> None:
    ops, device = implementations()[name]
    plain, ours = make(case, REFERENCE, "cpu"), make(case, ops, device)
    before = plain.y.clone()
    REFERENCE.add(plain.y, plain.x, plain.lora, plain.slots)
    ops.add(ours.y, ours.x, ours.lora, ours.slots)
    close(ours.y, plain.y)
    alone = plain.slots < 0
    assert torch.equal(ours.y.cpu()[alone], before[alone]), "a line without an adapter stays as it is"


rank = st.one_of(st.sampled_from([0, 1, 16, MAX_RANK]), st.integers(0, MAX_RANK))


@st.composite
def cases(draw: st.DrawFn, most: int, dtypes: tuple[torch.dtype, ...], any_stored: bool) -> Case:
    parts = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from(dtypes))
    stored = st.sampled_from(list(TOLERANCE)) if any_stored else st.just(dtype)
    return Case(
        lines=draw(st.integers(1, 40)),
        width=draw(st.integers(1, most)),
        parts=parts,
        ranks=tuple(tuple(draw(rank) for _ in parts) for _ in range(SLOTS)),
        affine=tuple(draw(st.integers(0, 3)) for _ in range(SLOTS)),
        seed=draw(st.integers(0, 1000)),
        dtype=dtype,
        stored=tuple(draw(stored) for _ in range(SLOTS)),
    )


@examples(40, 150)
@given(cases(most=300, dtypes=tuple(TOLERANCE), any_stored=True))
def test_cpu_adds_what_the_reference_adds(case: Case) -> None:
    check_add("cpu", case)


@interpreted_examples(6, 25)
@given(cases(most=140, dtypes=(torch.float32, NARROW), any_stored=False))
def test_triton_adds_what_the_reference_adds(case: Case) -> None:
    check_add("triton", case)


WIDE_INPUTS = [(18, 2200), (40, 2200), (3, 8704), (9, 9001)]  # lines, width
LOADS = [(130, 20), (144, 32)]  # narrow, wide
SPLIT = [(*size, parts) for size in WIDE_INPUTS for parts in LOADS]


@pytest.mark.parametrize(("lines", "width", "parts"), interpret_rows(SPLIT, [SPLIT[1], SPLIT[4]]))
def test_triton_splits_wide_inputs(lines: int, width: int, parts: tuple[int, int]) -> None:
    """Into fewer pieces than there may be, too, of which the last is shorter."""
    check_add("triton", Case(lines, width, parts, ((16, 3), (0, 40), (17, 0), (1, 1))))


@examples(20, 60)
@given(cases(most=200, dtypes=tuple(TOLERANCE), any_stored=True), st.data())
def test_a_line_has_its_bits_in_any_company(case: Case, data: st.DataObject) -> None:
    ops, _ = implementations()["cpu"]
    made = make(case, ops, "cpu")
    before = made.y.clone()
    ops.add(made.y, made.x, made.lora, made.slots)
    some = data.draw(st.lists(st.integers(0, case.lines - 1), min_size=1, max_size=9))
    again = before[some].clone()
    ops.add(again, made.x[some], made.lora, made.slots[some])
    assert torch.equal(again, made.y[some])


def test_a_recorded_call_serves_what_lies_in_the_slots_when_it_is_replayed() -> None:
    ops, _ = implementations()["cpu"]
    first, second = (make(Case(9, 64, (32, 16), ((4, 4),) * SLOTS, seed=seed), ops, "cpu") for seed in (1, 2))
    wanted = first.y.clone()
    ops.add(wanted, first.x, second.lora, first.slots)
    before = first.y.clone()
    graph, _ = calls().record(lambda: ops.add(first.y, first.x, first.lora, first.slots))
    assert isinstance(graph, CommandGraph)
    first.y.copy_(before)
    first.lora.entries.copy_(second.lora.entries)
    graph.replay(lambda: None)
    assert torch.equal(first.y, wanted)


def vocabulary(dtype: torch.dtype, ops: LoraOps, device: str) -> tuple[LoraMap, torch.Tensor, torch.Tensor]:
    """-> (adapters of a table of 50 vectors of 70 numbers, ids, slots): low-rank, saved, both, and none"""
    generator = torch.Generator().manual_seed(3)
    low = LoraPart(random(generator, 50, 5).to(dtype), random(generator, 5, 70).to(dtype), 0.5)
    saved = random(generator, 50, 70).to(dtype)
    parts = {
        0: (low,),
        1: (replace(NO_PART, a=NO_PART.a.to(dtype), b=NO_PART.b.to(dtype), saved=saved),),
        2: (replace(low, saved=saved, factor=1 + 0.1 * random(generator, 70)),),
    }
    ids = torch.randint(0, 50, (23,), generator=generator).int()
    slots = torch.randint(-1, SLOTS, (23,), generator=generator).int()
    return map_of(parts, (70,), ops, device, dtype, embedding=True), ids.to(device), slots.to(device)


@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, NARROW])
def test_embeddings(name: str, dtype: torch.dtype) -> None:
    ops, device = implementations()[name]
    base = torch.randn((23, 70), generator=torch.Generator().manual_seed(4)).to(dtype)
    found = []
    for each, where in ((REFERENCE, "cpu"), (ops, device)):
        lora, ids, slots = vocabulary(dtype, each, where)
        y = base.clone().to(where)
        each.saved_rows(y, ids, lora, slots, 2.0)
        each.add_embedding(y, ids, lora, slots, 2.0)
        found.append(y)
    close(found[1], found[0])
    assert not torch.equal(found[0], base)


@pytest.mark.parametrize("name", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, NARROW])
def test_saved_heads(name: str, dtype: torch.dtype) -> None:
    ops, device = implementations()[name]
    generator = torch.Generator().manual_seed(5)
    x, base = random(generator, 23, 70).to(dtype), random(generator, 23, 50).to(dtype)
    found = []
    for each, where in ((REFERENCE, "cpu"), (ops, device)):
        lora, _, slots = vocabulary(dtype, each, where)
        y = base.clone().to(where)
        each.saved_logits(y, x.to(where), lora, slots)
        found.append(y)
    close(found[1], found[0])


@pytest.mark.parametrize("name", ["cpu", "triton"])
@examples(15, 30)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=9), padding=st.integers(0, 4), seed=st.integers(0, 99))
def test_slots_of_tokens(name: str, lengths: list[int], padding: int, seed: int) -> None:
    ops, device = implementations()[name]
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-1, 8, (12, 3), generator=generator).int()
    rows = torch.randperm(12, generator=generator)[: len(lengths)].int()
    start = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    out = torch.full((int(start[-1]) + padding + 1,), 77, dtype=torch.int32)
    wanted = [slot for row, n in zip(rows.tolist(), lengths, strict=True) for slot in [int(table[row, 1])] * n]
    ours = out.to(device)
    ops.token_slots(table.to(device)[:, 1], rows.to(device), start.to(device), ours)
    REFERENCE.token_slots(table[:, 1], rows, start, out)
    assert ours.tolist() == out.tolist() == wanted + [-1] * (padding + 1)
