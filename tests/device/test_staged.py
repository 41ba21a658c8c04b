"""Staged tables: the device sees nothing before a flush and everything after it, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadence.device.base import Device
from cadence.device.probe import open_device
from cadence.device.staged import RowLists, RowScalars

pytestmark = pytest.mark.device

COLUMNS = {"length": "i32", "temperature": "f32", "seed": "i64", "top_k": "i32"}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def test_scalars_keep_their_bits(device: Device) -> None:
    table = RowScalars(device, 4, COLUMNS)
    table.set(2, length=7, temperature=0.7, seed=-(2**62) + 3, top_k=-1)
    assert table.get("seed").tolist() == [0, 0, 0, 0]
    table.flush()
    assert table.get("seed").tolist() == [0, 0, -(2**62) + 3, 0]
    assert table.get("length").tolist() == [0, 0, 7, 0]
    assert table.get("top_k").tolist() == [0, 0, -1, 0]
    assert table.get("temperature")[2].item() == np.float32(0.7)
    assert table.get("temperature").dtype == torch.float32


def test_a_flush_touches_only_rows_that_were_set(device: Device) -> None:
    table = RowScalars(device, 3, COLUMNS)
    table.set(0, length=1)
    table.set(1, length=2)
    table.flush()
    table.get("length")[0] = 50  # the device moved on by itself
    table.set(1, length=3)
    table.flush()
    assert table.get("length").tolist() == [50, 3, 0]
    table.flush()
    assert table.get("length").tolist() == [50, 3, 0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 5))), max_size=20))
def test_lists_end_as_if_written_at_once(writes: list[tuple[int, int, int] | None]) -> None:
    """None is a flush; writes within one flush do not overlap, as the contract has it."""
    lists = RowLists(open_device("cpu"), 4, 10)
    expected_np = np.zeros((4, 10), dtype=np.int32)
    staged = np.zeros((4, 10), dtype=bool)
    for number, write in enumerate(writes):
        if write is None or staged[write[0], write[1] : write[1] + write[2]].any():
            lists.flush()
            staged[:] = False
        if write is not None:
            row, start, count = write
            values_np = np.arange(count, dtype=np.int32) + 100 * number
            lists.write(row, start, values_np)
            expected_np[row, start : start + count] = values_np
            staged[row, start : start + count] = True
    lists.flush()
    assert np.array_equal(lists.table.numpy(), expected_np)


def test_lists_on_this_device(device: Device) -> None:
    lists = RowLists(device, 2, 4)
    values_np = np.array([5, 6], dtype=np.int32)
    lists.write(1, 2, values_np)
    assert lists.table.tolist() == [[0] * 4, [0] * 4]
    lists.flush()
    assert lists.table.tolist() == [[0] * 4, [0, 0, 5, 6]]
