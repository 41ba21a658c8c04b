"""The KV storage: what one layer writes into a block of its group, no other layer changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.model.kv_spec import KV_DTYPES, LayerKV, plan_layout
from cadence.device.cpu import CpuDevice
from cadence.runner.caches.storage import VIEWS, allocate_kv_cache
from cadence.scheduler.kv.kinds.choose import KINDS

pytestmark = pytest.mark.device

SIZE, PER_GROUP = 4, 3
DEVICE = CpuDevice(1)
_HEADS, _DIMS = st.sampled_from([1, 2, 3]), st.sampled_from([8, 12, 32])
LAYERS = st.builds(LayerKV, _HEADS, _DIMS, st.sampled_from([0, 32, 512]))
LAYERS |= st.builds(LayerKV, _HEADS, _DIMS, chunk=st.just(32))


@given(st.lists(LAYERS, min_size=1, max_size=14), st.sampled_from(sorted(KV_DTYPES)))
def test_no_layer_writes_over_another(layers: list[LayerKV], dtype: str) -> None:
    """Block ids are dealt to the groups in turn, as a pool would: each block belongs to one of them."""
    layout = plan_layout(layers, SIZE, dtype)
    num_groups = len(layout.groups)
    caches = allocate_kv_cache(layout, 1 + PER_GROUP * num_groups, DEVICE)
    parts = [
        half[1 + cache.group :: num_groups] for cache in caches for half in (cache.k, cache.v)
    ]  # of each layer the blocks of its group
    for number, part in enumerate(parts):
        part.fill_(number + 1)
    for number, part in enumerate(parts):
        assert torch.equal(part, torch.full_like(part, number + 1))
    used = sum(part.nbytes for part in parts)
    assert used <= PER_GROUP * num_groups * layout.block_bytes
    halves = [half.untyped_storage() for cache in caches for half in (cache.k, cache.v)]
    storages = {half.data_ptr(): half.nbytes() for half in halves}
    assert sum(storages.values()) == (1 + PER_GROUP * num_groups) * layout.block_bytes


def test_both_halves_know_the_same_kinds() -> None:
    """Those of all layers among them."""
    assert {LayerKV(1, 8, window).kind for window in (0, 32)} <= VIEWS.keys() == KINDS.keys()


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_layers_all_alike_have_dense_tensors(dtype: str) -> None:
    layers = [LayerKV(2, 16, window) for window in (32, 0, 32, 0)]
    caches = allocate_kv_cache(plan_layout(layers, SIZE, dtype), 9, DEVICE)
    shape = (9, 2, SIZE, 16 if KV_DTYPES[dtype] > 1 else 20)
    assert all(half.shape == shape and half.is_contiguous() for cache in caches for half in (cache.k, cache.v))
    assert [cache.group for cache in caches] == [1, 0, 1, 0]
    keys, values = [cache.k.data_ptr() for cache in caches], [cache.v.data_ptr() for cache in caches]
    assert keys[0] == keys[1] != keys[2] == keys[3] and values[0] == values[1] != values[2] == values[3]
