"""Chunks of a GPU's memory whose pages come and go: `pages.c` over a driver whose memory is the host's."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence.config.env import compiler
from cadence.device.driver import DriverError
from cadence.device.pages import ALLOCATE, FREE, PagedRegions, Pages
from cadence.device.regions import CpuRegions, spans, whole

pytestmark = pytest.mark.device

DRIVER = Path(__file__).parents[1] / "helpers" / "fake_cuda.c"
SIZE = 1 << 18
UNIT = 1 << 16


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not (command := compiler()):
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run([*command, "-shared", "-fPIC", "-w", str(DRIVER), "-o", str(made)], check=True)
    return str(made)


@pytest.fixture
def fake(driver: str) -> Any:
    library = ctypes.CDLL(driver)
    library.fake_taken.restype = ctypes.c_size_t
    library.fake_room.argtypes = [ctypes.c_size_t]
    return library


class World:
    """An allocator's user."""

    def __init__(self, driver: str) -> None:
        self.regions = PagedRegions(Pages(driver))
        library = self.regions.pages.library
        self._allocate, self._free = getattr(library, ALLOCATE), getattr(library, FREE)
        self._allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._allocate.restype = ctypes.c_void_p
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.addresses: list[int] = []

    def tensor(self, tag: str, size: int = SIZE) -> torch.Tensor:
        self.regions.pages.tag(self.regions.number(tag))
        address = self._allocate(size, 0, None)
        if address is None:
            raise MemoryError
        self.addresses.append(address)
        return torch.from_numpy(np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)))

    def close(self) -> None:
        for address in self.addresses:
            self._free(address, 0, 0, None)


@pytest.fixture
def world(driver: str) -> Iterator[World]:
    made = World(driver)
    yield made
    made.close()


def test_what_is_kept_comes_back_and_what_is_lost_is_zero(world: World, fake: Any) -> None:
    before = fake.fake_taken()
    one, two, other = world.tensor("a"), world.tensor("a"), world.tensor("b")
    for number, each in enumerate((one, two, other), 1):
        each.fill_(number)
    assert fake.fake_taken() == before + 3 * SIZE
    world.regions.give_back("a", [one[1000:2000], two])
    assert fake.fake_taken() == before + SIZE and other.eq(3).all()
    world.regions.give_back("a", [one])  # it sleeps already
    world.regions.take_back("a")
    assert fake.fake_taken() == before + 3 * SIZE
    assert two.eq(0).all() and one[1000:2000].eq(0).all()
    assert one[:1000].eq(1).all() and one[2000:].eq(1).all(), "in the same place, with what was there"
    world.regions.take_back("a")
    world.close()
    world.addresses.clear()
    assert fake.fake_taken() == before


def test_too_little_memory_is_no_end(world: World, fake: Any) -> None:
    """Neither when it wakes, beside others that have taken it, nor for who allocates."""
    one, two = world.tensor("a"), world.tensor("a")
    one.fill_(1)
    two.fill_(2)
    world.regions.give_back("a", [])
    fake.fake_room(fake.fake_taken() + SIZE)
    try:
        with pytest.raises(DriverError, match="0 MiB of the GPU's memory cannot be had again"):
            world.regions.take_back("a")
        with pytest.raises(MemoryError):
            world.tensor("b")
    finally:
        fake.fake_room(ctypes.c_size_t(-1).value)
    world.regions.take_back("a")
    assert one.eq(1).all() and two.eq(2).all()


def test_chunks_that_were_given_up_stay_away(world: World, fake: Any) -> None:
    one = world.tensor("a", 100)
    world.tensor("a", SIZE)
    first, second = sorted(world.regions.pages.chunks(world.regions.number("a")), key=lambda chunk: chunk.size)
    assert (first.size, second.size) == (UNIT, SIZE) and first.address == one.data_ptr()
    before = fake.fake_taken()
    world.regions.pages.unmap(second, for_good=True)
    assert world.regions.pages.chunks(world.regions.number("a")) == [first]
    world.regions.give_back("a", [])
    world.regions.take_back("a")
    assert fake.fake_taken() == before - SIZE


def test_host_memory_is_pinned_while_something_sleeps(world: World, fake: Any) -> None:
    """Until the end of who never wakes it."""
    world.tensor("a")
    for _ in range(2):
        world.regions.give_back("a", [])
        assert fake.fake_pinned() == 1
        world.regions.take_back("a")
        assert fake.fake_pinned() == 0
    world.regions.give_back("a", [])
    world.regions = PagedRegions(world.regions.pages)
    assert fake.fake_pinned() == 0


def test_a_driver_that_is_not_there() -> None:
    with pytest.raises(DriverError, match=r"libnothing\.so cannot be opened"):
        Pages("libnothing.so")


def test_where_tensors_lie() -> None:
    base = torch.zeros(100, dtype=torch.int16)
    at = base.data_ptr()
    assert spans([base[10:20], base[:5], base[15:30], base[:0]]) == [(at, at + 10), (at + 20, at + 60)]
    assert spans([base.view(10, 10)[:, :3]]) == [(at, at + 2 * 93)]
    (all_of_it,) = whole([base[3:4], base[50:]])
    assert (all_of_it.data_ptr(), all_of_it.nbytes) == (at, 200)


def test_pages_of_a_cpu_are_zeros_again() -> None:
    """But for those that another tensor has a part of."""
    base = torch.ones(1 << 16, dtype=torch.uint8)
    CpuRegions().give_back("a", [base[1:-1]])
    assert base[0] == 1 and base[-1] == 1 and base.sum() < 2 * 4096 + 2
