"""How attention layers share one pool of KV blocks.

A block is a fixed number of bytes and belongs to one group of layers at a time; a group's layers are of one kind and
one window or chunk, so they keep and give back the same blocks. Layers may differ in heads and head size: those of a
draft model join the groups of its target, and their keys come and go with the target's.

What a layer keeps has parts (keys, and values), a tensor each. The bytes of a block lie in slots, one tensor each,
apart for first parts, second parts and so on. A slot is as large as the first part that needed it, and shared by the
groups: each puts one part there, or several small ones side by side. So groups of other kinds, windows and shapes draw
blocks from one pool and waste little of them.

Layers whose keys serve one forward alone, those of an encoder, have one place together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

# Kinds of groups: `scheduler/kv/kinds` and `runner/caches` say what each is.
FULL, SLIDING, CHUNKED, CROSS = "full", "sliding", "chunked", "cross"
KV_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int4": 1}  # bytes
SCALED = ("int8", "fp8_e4m3", "fp8_e5m2")  # types whose rows are followed by ...
SCALE_BYTES = 4  # ... the float32 that their entries are multiples of
FOUR_BIT_RUN = 32  # entries of int4 that have a scale and a minimum of their own ...
FOUR_BIT_RUN_BYTES = 20  # ... and what all that takes
_Sizes = list[tuple[int, ...]]  # by layer: bytes of each part in a block
_ByKind = dict[tuple[int, str], list[int]]  # layers of each reach and kind
_MOST_GROUPS = 12  # each costs a block table and a gather; beyond, blocks are larger and some of their bytes idle


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one attention layer keeps per token."""

    num_kv_heads: int
    head_dim: int
    window: int = 0  # tokens a query sees, itself included; 0 = all
    passing: bool = False  # keys serve the forward that makes them: such layers use the same bytes, one after another
    cross: bool = False  # keys are those of an encoder's output, not of the request's own tokens
    chunk: int = 0  # tokens that sequences are cut into: a query sees none before its own chunk; 0 = they are not cut

    @property
    def kind(self) -> str:
        if self.cross:
            return CROSS
        if self.chunk:
            return CHUNKED
        return SLIDING if self.window else FULL

    @property
    def reach(self) -> int:
        """Tokens of its window or of a chunk; 0 = all are kept."""
        return self.window or self.chunk

    def row_width(self, dtype: str) -> int:
        """Entries of a row: the key or value of one token for one head; of int4, bytes. dtype: one of KV_DTYPES."""
        if dtype == "int4":
            return -(-self.head_dim // FOUR_BIT_RUN) * FOUR_BIT_RUN_BYTES
        return self.head_dim + SCALE_BYTES if dtype in SCALED else self.head_dim

    def part_bytes(self, block_size: int, dtype: str) -> tuple[int, ...]:
        """Of a block of tokens: its keys, and its values, over all heads."""
        half = self.num_kv_heads * self.row_width(dtype) * block_size * KV_DTYPES[dtype]
        return half, half


@dataclass(frozen=True, slots=True)
class KVGroup:
    kind: str
    window: int  # tokens of it, or of a chunk; 0 = none
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVPlace:
    """Where a layer's parts lie in each block of its group."""

    group: int
    parts: tuple[tuple[int, int], ...]  # (slot, bytes of a block before it there)


@dataclass(frozen=True, slots=True)
class KVLayout:
    block_size: int  # tokens per block
    dtype: str  # of keys and values: one of KV_DTYPES
    groups: tuple[KVGroup, ...]
    layers: tuple[LayerKV, ...]
    places: tuple[KVPlace, ...]  # by layer
    slots: tuple[int, ...]  # bytes of a block in each

    def of_layers(self, own: Sequence[int]) -> KVLayout:
        """As one device has it that has some of the layers: the same groups, some of which may be empty, and slots of
        its own."""
        places = {layer: place for place, layer in enumerate(own)}
        groups = [
            KVGroup(group.kind, group.window, tuple(places[layer] for layer in group.layers if layer in places))
            for group in self.groups
        ]
        layers = [self.layers[layer] for layer in own]
        if layers and all(layer.passing for layer in layers):
            return _one_place(layers, self.block_size, self.dtype)
        plan = _pack(groups, [layer.part_bytes(self.block_size, self.dtype) for layer in layers])
        return plan.layout(layers, self.block_size, self.dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes one block occupies over all slots."""
        return sum(self.slots)


def plan_layout(layers: Sequence[LayerKV], block_size: int, dtype: str) -> KVLayout:
    """Layers all alike: groups of as many as the rarest kind has, of one slot each. Else groups of whatever number
    makes the fewest bytes of a long text, full attention first: its blocks are never given back. No layers: no
    groups."""
    if not layers:
        return KVLayout(block_size=block_size, dtype=dtype, groups=(), layers=(), places=(), slots=())
    if all(layer.passing for layer in layers):
        return _one_place(layers, block_size, dtype)
    by_kind: _ByKind = {}
    for index, layer in enumerate(layers):
        by_kind.setdefault((layer.reach, layer.kind), []).append(index)
    sizes = [layer.part_bytes(block_size, dtype) for layer in layers]
    alike = len(set(sizes)) == 1
    plans = [_plan(by_kind, sizes, limit) for limit in _limits(by_kind, sizes, alike)]
    few = [plan for plan in plans if len(plan.groups) <= _MOST_GROUPS] or plans[-1:]
    best = few[0] if alike else min(few, key=_Plan.cost)
    return best.layout(layers, block_size, dtype)


def _one_place(layers: Sequence[LayerKV], block_size: int, dtype: str) -> KVLayout:
    """Of layers that pass: a block has room for the largest of them."""
    slots = [max(sizes) for sizes in zip(*(layer.part_bytes(block_size, dtype) for layer in layers), strict=True)]
    place = KVPlace(group=0, parts=tuple((slot, 0) for slot in range(len(slots))))
    group = KVGroup(FULL, 0, tuple(range(len(layers))))
    return _Plan((group,), (place,) * len(layers), tuple(slots)).layout(layers, block_size, dtype)


@dataclass(frozen=True, slots=True)
class _Plan:
    groups: tuple[KVGroup, ...]
    places: tuple[KVPlace, ...]
    slots: tuple[int, ...]

    def cost(self) -> tuple[int, int, int]:
        block, full = sum(self.slots), sum(group.kind == FULL for group in self.groups)
        return full * block, len(self.groups) * block, len(self.groups)

    def layout(self, layers: Sequence[LayerKV], block_size: int, dtype: str) -> KVLayout:
        return KVLayout(
            block_size=block_size,
            dtype=dtype,
            groups=self.groups,
            layers=tuple(layers),
            places=self.places,
            slots=self.slots,
        )


def _limits(by_kind: _ByKind, sizes: _Sizes, alike: bool) -> list[int]:
    """Bytes that a group may have, ascending: what leading layers of some kind come to; from the total of the
    rarest on where layers are alike."""
    sums = [list(accumulate(sum(sizes[layer]) for layer in members)) for members in by_kind.values()]
    least = min(total[-1] for total in sums) if alike else max(map(sum, sizes))
    return sorted({total for totals in sums for total in totals if total >= least})


def _plan(by_kind: _ByKind, sizes: _Sizes, limit: int) -> _Plan:
    """Neighbours of one kind and reach are together as long as they are no more than `limit` bytes."""
    groups = []
    for (reach, kind), members in sorted(by_kind.items()):
        start = total = 0
        for end, layer in enumerate(members):
            if total + sum(sizes[layer]) > limit:
                groups.append(KVGroup(kind, reach, tuple(members[start:end])))
                start, total = end, 0
            total += sum(sizes[layer])
        groups.append(KVGroup(kind, reach, tuple(members[start:])))
    return _pack(groups, sizes)


def _pack(groups: list[KVGroup], sizes: _Sizes) -> _Plan:
    slots: list[int] = []
    parts: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for number in range(max(map(len, sizes), default=0)):
        has = {layer: size[number] for layer, size in enumerate(sizes) if number < len(size)}
        members = [[layer for layer in group.layers if layer in has] for group in groups]
        placed, rooms = _pack_parts(members, has)
        for layer, (slot, start) in placed.items():
            parts[layer].append((len(slots) + slot, start))
        slots += rooms
    group_of = {layer: index for index, group in enumerate(groups) for layer in group.layers}
    places = tuple(KVPlace(group_of[layer], tuple(each)) for layer, each in enumerate(parts))
    return _Plan(groups=tuple(groups), places=places, slots=tuple(slots))


def _pack_parts(groups: list[list[int]], sizes: dict[int, int]) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """One part of each layer of groups -> by layer its slot and where it lies there, and the sizes of the slots.

    Groups of large layers go first, and in each its large layers: a layer goes to the first slot with room for it, and
    makes one where there is none."""

    def order(layers: list[int]) -> tuple[int, int]:
        of_group = [sizes[layer] for layer in layers]
        return -max(of_group, default=0), -sum(of_group)

    slots: list[int] = []
    places: dict[int, tuple[int, int]] = {}
    for layers in sorted(groups, key=order):
        filled = [0] * len(slots)
        for layer in sorted(layers, key=lambda layer: -sizes[layer]):
            size = sizes[layer]
            slot = next((at for at, room in enumerate(slots) if filled[at] + size <= room), len(slots))
            if slot == len(slots):
                slots.append(size)
                filled.append(0)
            places[layer] = slot, filled[slot]
            filled[slot] += size
    return places, slots
