"""Who stands where among ranks, which cores each has, and how their answers become one."""

from __future__ import annotations

import os

import pytest

from cadence.core.adapter import AdapterOutcome
from cadence.core.contract.control import ALLOCATE_KV, KV_BLOCKS, PREPARED_ADAPTERS, WARM_UP_MORE
from cadence.device.cpus import cpu_shares
from cadence.distributed.mesh import Mesh

pytestmark = pytest.mark.device


def test_ranks_of_a_stage_follow_one_another() -> None:
    places = [Mesh(rank, 2, 3) for rank in range(6)]
    assert [(mesh.pp_rank, mesh.tp_rank) for mesh in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [mesh.is_last_stage for mesh in places] == [False, False, False, False, True, True]
    assert [mesh.is_driver for mesh in places] == [rank == 4 for rank in range(6)]
    assert {mesh.driver for mesh in places} == {4} and {mesh.world_size for mesh in places} == {6}
    assert places[0].at(5) == places[5]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (-1, 2, 2), (4, 2, 2), (0, 0, 1), (0, 1, -1)])
def test_ranks_that_are_none(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="rank"):
        Mesh(*sizes)


def test_each_rank_has_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr("cadence.device.cpus._siblings", lambda topology: "")
    assert cpu_shares(1, 5) == [(5, ())]
    assert cpu_shares(2, 2) == [(1, (0,)), (1, (1,))]
    assert cpu_shares(2, 4) == [(2, ()), (2, ())], "more threads than cores: they share"
    assert cpu_shares(3, 2) == [(1, ())] * 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("cadence.device.cpus._siblings", lambda topology: str(int(topology.parent.name[3:]) % 4))
    assert cpu_shares(2, 4) == [(2, (0, 4, 1, 5)), (2, (2, 6, 3, 7))], "two CPUs of one core stay together"


def test_answers_of_ranks_become_one() -> None:
    assert KV_BLOCKS.combined([30, 10, 20]) == 10
    assert WARM_UP_MORE.combined([False, True]) is True
    assert ALLOCATE_KV.combined([None, None]) is None


def test_an_adapter_counts_when_all_ranks_have_read_it() -> None:
    verb = PREPARED_ADAPTERS
    a, b, bad = AdapterOutcome("a", "1", ""), AdapterOutcome("b", "2", ""), AdapterOutcome("b", "", "too large")
    kept = [[a, b], [a]]
    assert verb.cumulative and verb.combined(kept) == [a]
    assert kept == [[b], []]
    kept[1].append(bad)
    assert verb.combined(kept) == [bad] and kept == [[], []]
    (differs,) = verb.combined([[a], [AdapterOutcome("a", "9", "")]])
    assert differs.error
