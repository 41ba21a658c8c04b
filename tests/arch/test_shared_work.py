"""How `make test` divides its files between processes: each test once, the files that mostly wait beside the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.arch.source import ROOT
from tests.helpers.shared_collection import rooms_from, sort_by_file
from tests.helpers.shared_work import LONGEST, MOST_SPARE, MOSTLY_WAITING, SharedWorkScheduling

COMPUTING = [f"tests/kernels/test_{number}.py" for number in range(3 * len(MOSTLY_WAITING))]


class Worker:
    """A process of xdist, as the scheduler has it: it runs what it is given one by one."""

    def __init__(self, number: int, ids: list[str]) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.queue: list[int] = []
        self.done: list[str] = []
        self._ids = ids

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.queue += indices

    def shutdown(self) -> None:
        """After what it has."""
        self.shutting_down = True

    def can_run(self) -> bool:
        """xdist runs a test when it knows the next one, or that there is none."""
        return len(self.queue) > 1 or (self.shutting_down and bool(self.queue))

    def run_one(self) -> int:
        index = self.queue.pop(0)
        self.done.append(self._ids[index])
        return index


def divide(files: list[str], num_workers: int) -> list[Worker]:
    """-> the workers, with the tests that each has run. All are equally fast."""
    ids = [f"{file}::test_{number}" for file in files for number in range(4)]
    option = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(option=option, getvalue={"tx": ["popen"] * num_workers}.__getitem__)
    scheduling = SharedWorkScheduling(config, log=None)
    workers: list[Any] = [Worker(number, ids) for number in range(num_workers)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, ids)
    scheduling.schedule()
    while ready := [worker for worker in workers if worker.can_run()]:
        for worker in ready:
            scheduling.mark_test_complete(worker, worker.run_one())
    assert all(worker.shutting_down and not worker.queue for worker in workers)
    assert sorted(test for worker in workers for test in worker.done) == sorted(ids)
    return workers


def files_of(worker: Worker) -> set[str]:
    return {test.partition("::")[0] for test in worker.done}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


@pytest.mark.parametrize("num_workers", [3, 4, 5])
def test_files_that_wait_have_processes_of_their_own(num_workers: int) -> None:
    workers = divide([*COMPUTING, *MOSTLY_WAITING, "tests/vllm/test_z.py"], num_workers)
    computing = num_workers - min(num_workers - 2, MOST_SPARE)
    for spare in workers[computing:]:
        waiting = [test.partition("::")[0] in MOSTLY_WAITING for test in spare.done]
        assert waiting == sorted(waiting, reverse=True) and {*waiting} == {True, False}, "those first, then others"
    assert set().union(*map(files_of, workers[computing:])) > set(MOSTLY_WAITING)
    assert not any(files_of(worker) & set(MOSTLY_WAITING) for worker in workers[:computing])


def test_where_each_has_a_core_all_are_alike() -> None:
    """And have the files in their order."""
    files = [*COMPUTING[:5], *MOSTLY_WAITING, *COMPUTING[5:]]
    workers = divide(files, 2)
    assert [files_of(worker) for worker in workers] == [set(files[::2]), set(files[1::2])]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("files", [COMPUTING, MOSTLY_WAITING, (*MOSTLY_WAITING[:2], COMPUTING[0])])
def test_every_test_is_run_once(files: list[str], num_workers: int) -> None:
    divide(list(files), num_workers)


@pytest.mark.parametrize("num_workers", [2, 3, 4])
def test_the_longest_files_come_first(num_workers: int) -> None:
    workers = divide([*COMPUTING, *MOSTLY_WAITING, *LONGEST], num_workers)[:2]
    begun = [list(dict.fromkeys(test.partition("::")[0] for test in worker.done)) for worker in workers]
    assert [files[:4] for files in begun] == [list(LONGEST[:8:2]), list(LONGEST[1:8:2])]


def test_they_are_files() -> None:
    named = [*MOSTLY_WAITING, *LONGEST]
    assert len(set(named)) == len(named)
    assert [file for file in named if not (ROOT / file).is_file()] == []


def test_processes_begin_to_read_in_different_rooms() -> None:
    orders = [rooms_from(number, 4) for number in range(4)]
    assert len({order[0] for order in orders}) == 4
    assert all(sorted(order) == orders[0] for order in orders)
    files = {file for room in orders[0] for file in Path(room).rglob("test_*.py")}
    assert files == set((ROOT / "tests").rglob("test_*.py"))


def test_what_was_read_in_any_order_is_run_in_one() -> None:
    files = [ROOT / "tests" / name for name in ("a/test_b.py", "a/b/test_a.py", "a_b/test_a.py", "a/test_b.py")]
    items: list[Any] = [SimpleNamespace(path=file, number=number) for number, file in enumerate(files)]
    sort_by_file(items)
    assert [item.number for item in items] == [1, 0, 3, 2]
