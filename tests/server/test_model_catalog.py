"""The catalog of models, over engines that are not there: never more than the memory, never two loads of one model at
once, no request lost, pinned ones stay."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.errors import EngineDeadError
from cadence.entrypoints.server.several import catalog as module
from cadence.entrypoints.server.several.catalog import Catalog
from cadence.entrypoints.server.several.entry import (
    Loaded,
    ModelBusyError,
    ModelFailedError,
    ModelsClosedError,
    ModelTooLargeError,
)
from cadence.entrypoints.server.several.residency import HOLDING, ModelBooks, ModelState, Rules, Wanted, make_plan
from tests.helpers.wide import examples

LONG = 3600.0


class Loop(asyncio.SelectorEventLoop):
    """Time passes when nothing else can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def at_once(timeout: float | None = None) -> Any:
            if timeout is None:
                raise RuntimeError("nothing will ever happen: a request is lost")
            self.now += timeout
            return select(0)

        self._selector.select = at_once  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


def simulated(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)


@dataclass
class World:
    """The memory of a machine, as engines fill it."""

    budget: int
    draw: random.Random
    held: dict[str, int] = field(default_factory=dict)
    most: int = 0
    loads: list[str] = field(default_factory=list)

    def take(self, name: str, size: int) -> None:
        self.held[name] = size
        self.most = max(self.most, sum(self.held.values()))


class FakeModel:
    """A `Source` whose value is a token of this load."""

    def __init__(self, name: str, size: int, world: World, fails: float = 0.0) -> None:
        self.name = name
        self.size = size
        self.world = world
        self.fails = fails
        self.load_s: float | None = None  # None = one of several
        self.is_loading = False
        self.value: object | None = None
        self.asleep = False

    async def need(self) -> int:
        await asyncio.sleep(self.world.draw.choice([0, 0.1]))
        return self.size

    async def load(self) -> Loaded[object]:
        assert not self.is_loading and self.value is None, "two loads of one model"
        self.is_loading = True
        self.world.loads.append(self.name)
        self.world.take(self.name, self.size)
        try:
            await asyncio.sleep(self.world.draw.choice([0, 0.5, 3]) if self.load_s is None else self.load_s)
            if self.world.draw.random() < self.fails:
                raise EngineDeadError("bad weights")
        except BaseException:
            del self.world.held[self.name]
            raise
        finally:
            self.is_loading = False
        self.value, self.asleep = object(), False
        return Loaded(self.value, self.size)

    async def unload(self, value: object) -> None:
        assert value is self.value
        await asyncio.sleep(self.world.draw.choice([0, 0.2]))
        self.value = None
        del self.world.held[self.name]

    async def sleep(self, value: object) -> int:
        assert value is self.value and not self.asleep
        await asyncio.sleep(self.world.draw.choice([0, 0.1]))
        self.asleep = True
        self.world.take(self.name, self.size // 4)
        return self.size // 4

    async def wake(self, value: object) -> int:
        assert value is self.value and self.asleep
        self.world.take(self.name, self.size)
        await asyncio.sleep(self.world.draw.choice([0, 0.1]))
        self.asleep = False
        return self.size


def catalog_of(world: World, sizes: dict[str, int], **rules: Rules) -> Catalog[object]:
    sources = {name: (FakeModel(name, size, world), rules.get(name, Rules())) for name, size in sizes.items()}
    return Catalog(sources, world.budget, asyncio.get_running_loop().time)


def model(catalog: Catalog[object], name: str) -> FakeModel:
    source = catalog[name].source
    assert isinstance(source, FakeModel)
    return source


async def use(catalog: Catalog[object], name: str, seconds: float = 0.0, wait: float = LONG) -> object:
    async with catalog.lease(name, wait) as value:
        source = model(catalog, name)
        assert value is source.value and not source.asleep
        await asyncio.sleep(seconds)
        assert value is source.value and not source.asleep, "taken away while it was used"
        return value


ACTIONS = st.tuples(
    st.sampled_from(["use", "use", "use", "leave", "unload", "load", "lose"]),
    st.integers(0, 3),  # which model
    st.sampled_from([0.0, 0.3, 1.0, 7.0]),  # seconds before it
    st.sampled_from([0.0, 0.5, 5.0]),  # seconds that a request takes
)


@examples(60, 300)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    budget=st.integers(6, 14),
    rules=st.lists(
        st.builds(Rules, st.sampled_from([math.inf, 0.0, 2.0]), st.just(False), st.booleans()), min_size=4, max_size=4
    ),
    pinned=st.none() | st.integers(0, 3),
    fails=st.sampled_from([0.0, 0.0, 0.3]),
    actions=st.lists(ACTIONS, min_size=1, max_size=25),
    seed=st.integers(0, 1000),
)
def test_whatever_happens(
    sizes: list[int],
    budget: int,
    rules: list[Rules],
    pinned: int | None,
    fails: float,
    actions: list[tuple[str, int, float, float]],
    seed: int,
) -> None:
    world = World(budget, random.Random(seed))

    async def run() -> None:
        sources = {}
        for number, size in enumerate(sizes):
            rule = Rules(math.inf, pinned=True) if number == pinned else rules[number]
            sources[f"m{number}"] = FakeModel(f"m{number}", size, world, fails), rule
        catalog = Catalog(sources, budget, asyncio.get_running_loop().time)
        jobs = []
        for what, number, before, seconds in actions:
            await asyncio.sleep(before)
            name = f"m{number % len(sizes)}"
            jobs.append(asyncio.ensure_future(act(catalog, what, name, seconds)))
            check(catalog)
        await asyncio.gather(*jobs)
        check(catalog)
        for entry in catalog.entries.values():
            if entry.books.rules.pinned and entry.books.state is ModelState.SLEEPING:
                raise AssertionError("a pinned model was put away")
            assert not entry.books.users and not entry.books.leaving
        await catalog.close()
        assert not world.held and not catalog.held

    def check(catalog: Catalog[object]) -> None:
        assert world.most <= budget and catalog.held <= budget

    async def act(catalog: Catalog[object], what: str, name: str, seconds: float) -> None:
        if what == "unload":
            await catalog.unload(name, is_cut=seconds > 1 and not catalog[name].books.users)
        elif what == "lose" and (value := catalog.ready(name)) is not None and not catalog[name].books.users:
            catalog.lose(name, value, "it died")
        elif what == "leave":  # the client goes, at whatever moment
            job = asyncio.ensure_future(use(catalog, name, seconds))
            await asyncio.sleep(seconds)
            job.cancel()
            with contextlib.suppress(asyncio.CancelledError, ModelFailedError):
                await job
        else:
            with contextlib.suppress(ModelFailedError):
                await (catalog.load(name, LONG) if what == "load" else use(catalog, name, seconds))

    simulated(run())


def test_ten_requests_for_a_cold_model_are_one_load() -> None:
    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 4})
        values = await asyncio.gather(*(use(catalog, "a", 1.0) for _ in range(10)))
        assert len(set(values)) == 1 and catalog["a"].num_loads == 1
        await catalog.close()

    simulated(run())


def test_a_client_that_leaves_cuts_no_load() -> None:
    async def run() -> None:
        world = World(10, random.Random(1))
        catalog = catalog_of(world, {"a": 4})
        first = asyncio.ensure_future(use(catalog, "a"))
        while not world.loads:
            await asyncio.sleep(0.01)
        first.cancel()
        await use(catalog, "a")
        assert catalog["a"].num_loads == 1 and world.loads == ["a"]
        await catalog.close()

    simulated(run())


def test_the_least_recently_used_goes_and_only_as_many_as_must() -> None:
    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 3, "b": 3, "c": 3, "d": 4})
        for name in ("a", "b", "c", "a"):
            await use(catalog, name)
            await asyncio.sleep(1)
        await use(catalog, "d")  # 1 is free: b goes, and that is enough
        states = {name: entry.books.state for name, entry in catalog.entries.items()}
        ready, gone = ModelState.READY, ModelState.UNLOADED
        assert states == {"a": ready, "b": gone, "c": ready, "d": ready}
        await catalog.close()

    simulated(run())


def test_a_pinned_model_stays_and_what_does_not_fit_beside_it_is_told_so() -> None:
    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 6, "b": 5, "c": 4}, a=Rules(pinned=True))
        await use(catalog, "a")
        with pytest.raises(ModelTooLargeError, match="the model b needs"):
            await use(catalog, "b")
        await use(catalog, "c")
        assert catalog["a"].books.state is ModelState.READY and catalog["a"].num_loads == 1
        await catalog.close()

    simulated(run())


def test_a_pinned_model_stays_though_it_was_used_least_recently() -> None:
    async def run() -> None:
        catalog = catalog_of(
            World(10, random.Random(1)), {"a": 3, "b": 3, "c": 5}, a=Rules(pinned=True, keep_alive=0.0)
        )
        for name in ("a", "b", "c"):
            await use(catalog, name)
            await asyncio.sleep(1)
        assert [entry.num_loads for entry in catalog.entries.values()] == [1, 1, 1]
        assert [entry.books.state for entry in catalog.entries.values()] == [
            ModelState.READY,
            ModelState.UNLOADED,
            ModelState.READY,
        ]
        await catalog.close()

    simulated(run())


def test_a_client_may_leave_in_the_moment_that_its_model_is_there() -> None:
    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 6, "b": 6})
        job = asyncio.ensure_future(use(catalog, "a"))
        answer = catalog._answer

        def answer_and_leave(*given: Any) -> None:
            answer(*given)
            job.cancel()

        catalog._answer = answer_and_leave  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await job
        catalog._answer = answer  # type: ignore[method-assign]
        assert not catalog["a"].books.users
        await use(catalog, "b", wait=60.0)
        await catalog.close()

    simulated(run())


def test_one_that_need_not_go_any_more_is_open_again() -> None:
    """`b` has waited for the place of `a`, and leaves: who waited for `a` meanwhile waits no longer."""

    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 6, "b": 6})
        long = asyncio.ensure_future(use(catalog, "a", 100.0))
        await asyncio.sleep(5)
        other = asyncio.ensure_future(use(catalog, "b", wait=10.0))
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        await use(catalog, "a")
        assert 1 < asyncio.get_running_loop().time() - began < 10
        with pytest.raises(ModelBusyError):
            await other
        await long
        assert catalog["a"].num_loads == 1
        await catalog.close()

    simulated(run())


def test_a_model_without_end_of_requests_gives_way_in_the_end() -> None:
    """Two streams of requests for `a` leave no gap; `b` gets its turn, and `a` comes back."""

    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 6, "b": 6})

        async def stream() -> None:
            for _ in range(40):
                await use(catalog, "a", 1.0)

        streams = [asyncio.ensure_future(stream())]
        await asyncio.sleep(0.5)
        streams.append(asyncio.ensure_future(stream()))
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        await use(catalog, "b")
        assert asyncio.get_running_loop().time() - began < 15
        await asyncio.gather(*streams)
        assert catalog["a"].num_loads == 2
        await catalog.close()

    simulated(run())


def test_who_waits_too_long_is_told_and_the_others_go_on() -> None:
    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 6, "b": 6})
        long = asyncio.ensure_future(use(catalog, "a", 100.0))
        await asyncio.sleep(5)
        with pytest.raises(ModelBusyError, match="not ready within 10 s"):
            await use(catalog, "b", wait=10.0)
        await long
        await catalog.close()

    simulated(run())


def test_a_failed_load_is_told_for_a_while_and_tried_again() -> None:
    async def run() -> None:
        world = World(10, random.Random(1))
        catalog = catalog_of(world, {"a": 4, "b": 4})
        model(catalog, "a").fails = 1.0
        for _ in range(3):
            with pytest.raises(ModelFailedError, match="bad weights"):
                await use(catalog, "a")
        assert world.loads == ["a"] and catalog["a"].why == "bad weights" and not world.held
        await use(catalog, "b")
        model(catalog, "a").fails = 0.0
        await catalog.load("a", LONG)  # by command: at once
        await use(catalog, "a")
        assert world.loads == ["a", "b", "a"] and not catalog["a"].why
        catalog.lose("a", object(), "of another load")
        assert catalog.ready("a") is not None
        catalog.lose("a", catalog.ready("a"), "the engine died")
        with pytest.raises(ModelFailedError, match="the engine died"):
            await use(catalog, "a")
        await asyncio.sleep(module.RETRY_S)
        await use(catalog, "a")
        await catalog.close()

    simulated(run())


def test_keep_alive_counts_from_the_last_request() -> None:
    async def run() -> None:
        rules = {"a": Rules(keep_alive=10.0), "b": Rules(keep_alive=0.0), "c": Rules(keep_alive=10.0, sleeps=True)}
        catalog = catalog_of(World(20, random.Random(1)), {"a": 4, "b": 4, "c": 4}, **rules)
        for _ in range(5):
            await use(catalog, "a", 3.0)
            await asyncio.sleep(9.0)
        assert catalog["a"].num_loads == 1 and catalog["a"].books.state is ModelState.READY
        await asyncio.sleep(2.0)
        assert catalog["a"].books.state is ModelState.UNLOADED
        await use(catalog, "b", 3.0)
        await asyncio.sleep(1.0)
        assert catalog["b"].books.state is ModelState.UNLOADED
        await use(catalog, "c")
        await asyncio.sleep(11.0)
        assert catalog["c"].books.state is ModelState.SLEEPING and catalog.held == 1
        await use(catalog, "c")
        assert catalog["c"].num_loads == 1
        await catalog.close()

    simulated(run())


@pytest.mark.parametrize("is_cut", [False, True], ids=["in_order", "cut"])
def test_unloading_by_command(is_cut: bool) -> None:
    """In order, it waits for the requests; new ones wait for the next load. Cut, a load that is under way ends."""

    async def run() -> None:
        world = World(10, random.Random(1))
        catalog = catalog_of(world, {"a": 4})
        assert not await catalog.unload("a")
        if is_cut:
            waiting = asyncio.ensure_future(use(catalog, "a"))
            while not world.loads:
                await asyncio.sleep(0.01)
            assert await catalog.unload("a", is_cut=True)
            with pytest.raises(ModelFailedError, match="was unloaded"):
                await waiting
            assert not world.held
        first = asyncio.ensure_future(use(catalog, "a", 20.0))
        await asyncio.sleep(5.0)
        unloading = asyncio.ensure_future(catalog.unload("a"))
        await asyncio.sleep(1.0)
        assert catalog["a"].books.state is ModelState.READY
        later = asyncio.ensure_future(use(catalog, "a"))
        await first
        assert await unloading
        await later
        assert catalog["a"].num_loads == 2
        await catalog.close()

    simulated(run())


def test_closing_ends_loads_and_tells_who_waits() -> None:
    async def run() -> None:
        world = World(10, random.Random(1))
        catalog = catalog_of(world, {"a": 4, "b": 4, "c": 4})
        await use(catalog, "a")
        model(catalog, "b").load_s = 5.0
        waiting = [asyncio.ensure_future(use(catalog, name)) for name in ("b", "c")]
        while len(world.loads) < 2:
            await asyncio.sleep(0.01)
        await catalog.close()
        for job in waiting:
            with pytest.raises(ModelsClosedError):
                await job
        assert not world.held
        with pytest.raises(ModelsClosedError):
            await use(catalog, "a")

    simulated(run())


def test_one_that_turned_out_larger_pushes_out_idle_ones() -> None:
    async def run() -> None:
        catalog = catalog_of(World(10, random.Random(1)), {"a": 3, "b": 3, "c": 3})
        for name in ("a", "b"):
            await use(catalog, name)
        model(catalog, "c").size = 3

        async def larger() -> Loaded[object]:
            loaded = await FakeModel.load(model(catalog, "c"))
            return Loaded(loaded.value, 6)

        model(catalog, "c").load = larger  # type: ignore[method-assign]
        await use(catalog, "c")
        await asyncio.sleep(1)
        assert catalog.held == 9 and catalog["a"].books.state is ModelState.UNLOADED
        assert catalog["c"].books.need == 6
        await catalog.close()

    simulated(run())


def test_what_is_promised_to_one_is_not_given_to_the_next() -> None:
    """`big` waits for a busy one; `small` fits beside both and need not wait, `middle` would take its place."""
    busy = ModelBooks("busy", Rules(), ModelState.READY, 6, 6, users=1)
    big, middle, small = (
        ModelBooks(name, Rules(), need=need) for name, need in (("big", 8), ("middle", 4), ("small", 2))
    )
    everyone = [busy, big, middle, small]
    plan = make_plan([Wanted(big, 1.0), Wanted(middle, 0.5), Wanted(small, 0.1)], everyone, budget=10)
    assert plan.load == [small] and not plan.leave and not plan.yields and not plan.hopeless
    plan = make_plan([Wanted(big, 5.0)], everyone, budget=10)
    assert plan.yields == [busy]
    assert busy.state in HOLDING
