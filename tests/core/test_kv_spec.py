"""The layout of KV blocks: layers of any windows and shapes share a pool, none lies on another, little is wasted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadence.core.model.kv_spec import CHUNKED, CROSS, FULL, KV_DTYPES, SCALED, SLIDING, KVGroup, LayerKV, plan_layout

SIZE = 16
DTYPES = st.sampled_from(sorted(KV_DTYPES))
ANY_LAYER = st.builds(
    LayerKV, st.sampled_from([1, 2, 3, 8]), st.sampled_from([16, 24, 64, 128]), st.sampled_from([0, 32, 512])
)
IN_CHUNKS = st.builds(LayerKV, st.sampled_from([1, 4]), st.sampled_from([16, 64]), chunk=st.just(512))
MANY = st.lists(ANY_LAYER | IN_CHUNKS, min_size=1, max_size=40)


def layer_bytes(layer: LayerKV, dtype: str) -> int:
    """Of one block: keys and values of SIZE tokens; an int8 row has a scale of four bytes."""
    row = layer.head_dim * KV_DTYPES[dtype] + (4 if dtype in SCALED else 0)
    if dtype == "int4":
        row = math.ceil(layer.head_dim / 32) * 20
    return 2 * SIZE * layer.num_kv_heads * row


@settings(deadline=None)
@given(MANY, DTYPES)
def test_every_layer_is_in_one_group_of_its_window(layers: list[LayerKV], dtype: str) -> None:
    layout = plan_layout(layers, SIZE, dtype)
    assert sorted(index for group in layout.groups for index in group.layers) == list(range(len(layers)))
    for number, group in enumerate(layout.groups):
        assert {(layers[index].kind, layers[index].reach) for index in group.layers} == {(group.kind, group.window)}
        assert {layout.places[index].group for index in group.layers} == {number}
    assert len(layout.groups) <= 12


def test_layers_that_pass_have_one_place_together() -> None:
    """Whatever their number, on every device that has some of them."""
    layers = [LayerKV(4, 32, passing=True), LayerKV(4, 64, passing=True), LayerKV(4, 64, passing=True)]
    layout = plan_layout(layers, SIZE, "float32")
    assert layout.block_bytes == layer_bytes(layers[1], "float32")
    assert len(set(layout.places)) == 1 and layout.groups == (KVGroup(FULL, 0, (0, 1, 2)),)
    assert layout.of_layers([0, 1, 2]) == layout


def test_chunks_have_groups_of_their_own_beside_windows_of_as_many_tokens() -> None:
    layers = [LayerKV(2, 16, chunk=64), LayerKV(2, 16, 64), LayerKV(2, 16)] * 2
    layout = plan_layout(layers, SIZE, "float32")
    assert layout.groups == (KVGroup(FULL, 0, (2, 5)), KVGroup(CHUNKED, 64, (0, 3)), KVGroup(SLIDING, 64, (1, 4)))
    assert layout.of_layers([0, 2]).groups == (
        KVGroup(FULL, 0, (1,)),
        KVGroup(CHUNKED, 64, (0,)),
        KVGroup(SLIDING, 64, ()),
    )


def test_cross_attention_has_groups_of_its_own_that_share_slots_with_the_others() -> None:
    layers = [LayerKV(2, 16), LayerKV(2, 16, cross=True)] * 3
    layout = plan_layout(layers, SIZE, "float32")
    assert layout.groups == (KVGroup(CROSS, 0, (1, 3, 5)), KVGroup(FULL, 0, (0, 2, 4)))
    assert layout.block_bytes == 3 * layer_bytes(layers[0], "float32")


@settings(deadline=None)
@given(MANY, DTYPES)
def test_layers_of_one_group_do_not_overlap_and_bytes_add_up(layers: list[LayerKV], dtype: str) -> None:
    layout = plan_layout(layers, SIZE, dtype)
    for group in layout.groups:
        taken: dict[int, list[int]] = {slot: [] for slot in range(len(layout.slots))}  # bytes, slot by slot
        for index in group.layers:
            for (slot, start), count in zip(
                layout.places[index].parts, layers[index].part_bytes(SIZE, dtype), strict=True
            ):
                assert start + count <= layout.slots[slot]
                taken[slot] += range(start, start + count)
        assert all(len(places) == len(set(places)) for places in taken.values())
        used = sum(layer_bytes(layers[index], dtype) for index in group.layers)
        assert used == sum(map(len, taken.values())) <= layout.block_bytes
    assert layout.block_bytes == sum(layout.slots)
    parts = [
        zip(place.parts, layer.part_bytes(SIZE, dtype)) for place, layer in zip(layout.places, layers, strict=True)
    ]
    alone = {(slot, count) for each in parts for (slot, _), count in each}
    assert set(enumerate(layout.slots)) <= alone, "a slot larger than any layer in it"


def of_one_shape(windows: list[int]) -> tuple[list[KVGroup], list[tuple[int, int]]]:
    """(groups, (group, slot) of each layer): kinds split into groups of as many layers as the smallest kind has."""
    kinds = {window: [i for i, w in enumerate(windows) if w == window] for window in sorted(set(windows))}
    size = min(map(len, kinds.values()))
    groups = [
        KVGroup(SLIDING if window else FULL, window, tuple(members[start : start + size]))
        for window, members in kinds.items()
        for start in range(0, len(members), size)
    ]
    places = {layer: (i, group.layers.index(layer)) for i, group in enumerate(groups) for layer in group.layers}
    return groups, [places[layer] for layer in range(len(windows))]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 32, 512]), min_size=1, max_size=40), DTYPES)
def test_layers_all_alike_have_one_slot_each(windows: list[int], dtype: str) -> None:
    groups, places = of_one_shape(windows)
    if len(groups) > 12:
        return
    layout = plan_layout([LayerKV(4, 64, window) for window in windows], SIZE, dtype)
    assert list(layout.groups) == groups
    size = len(groups[0].layers)  # keys have the first slots, values as many after them
    found = [(place.group, place.parts) for place in layout.places]
    assert found == [(group, ((slot, 0), (size + slot, 0))) for group, slot in places]
    assert layout.block_bytes == size * layer_bytes(LayerKV(4, 64), dtype)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_draft_of_the_same_window_joins_the_group_and_wastes_nothing(dtype: str) -> None:
    target, draft = [LayerKV(8, 128)] * 32, [LayerKV(2, 64)] * 24
    layout = plan_layout(target + draft, SIZE, dtype)
    assert layout.groups == (KVGroup(FULL, 0, tuple(range(56))),)
    assert layout.block_bytes == sum(layer_bytes(layer, dtype) for layer in target + draft)


def test_small_layers_lie_side_by_side_where_a_large_one_lies_in_other_groups() -> None:
    target = [LayerKV(4, 256, window) for window in [1024] * 5 + [0]] * 5
    draft = [LayerKV(1, 256, window) for window in [512] * 5 + [0]] * 3
    layout = plan_layout(target + draft, SIZE, "bfloat16")
    full = [group for group in layout.groups if group.window == 0]
    small = [group for group in layout.groups if group.window == 512]
    assert len(full) == len(small) == 1 and len(layout.groups) <= 12
    assert len(small[0].layers) == 15 and max(layout.places[layer].parts[0][1] for layer in small[0].layers) > 0
    of_full = sum(layer_bytes(layout.layers[layer], "bfloat16") for layer in full[0].layers)
    assert layout.block_bytes <= 1.05 * of_full, "what grows with the text fills its blocks"


def test_one_layer_of_another_window_does_not_make_a_group_of_each() -> None:
    layout = plan_layout([LayerKV(8, 128, 4096)] * 32 + [LayerKV(8, 128)], SIZE, "bfloat16")
    assert [(group.window, len(group.layers)) for group in layout.groups] == [(0, 1)] + [(4096, 3)] * 10 + [(4096, 2)]
    assert len(layout.slots) == 2 * 3


class LatentKV(LayerKV):
    """One row of a token in place of keys and values."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return "latent"

    def part_bytes(self, block_size: int, dtype: str) -> tuple[int, ...]:
        return (block_size * self.head_dim * KV_DTYPES[dtype],)


def test_layers_of_one_part_share_blocks_with_those_of_two() -> None:
    layout = plan_layout([LayerKV(4, 64), LatentKV(1, 256)] * 2, SIZE, "bfloat16")
    assert [(group.kind, group.layers) for group in layout.groups] == [(FULL, (0, 2)), ("latent", (1, 3))]
    assert [place.parts for place in layout.places] == [((0, 0), (2, 0)), ((0, 0),), ((1, 0), (3, 0)), ((1, 0),)]
    assert layout.slots == LatentKV(1, 256).part_bytes(SIZE, "bfloat16") * 4
