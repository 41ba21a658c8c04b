"""The router: who gets a request, with engines that come and go and loads of any shape."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from cadence.core.adapter import AdapterSpec
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.sampling_params import SamplingParams
from cadence.engine.fleet.router import REQUEST_COST, SLACK, SPREAD, Router
from tests.helpers.wide import examples

BLOCK = 16
SAMPLING, STOP = SamplingParams(), StopRule(frozenset(), frozenset(), 0, 16)


def make_request(name: str, prompt: list[int], salt: str = "", adapter: str = "") -> EngineRequest:
    specs = (AdapterSpec("a", adapter),) if adapter else ()
    return EngineRequest(name, prompt, SAMPLING, STOP, 0, 0.0, cache_salt=salt, attachments=specs)


def make_router(num_engines: int, max_keys: int = 1000) -> Router:
    router = Router(num_engines, BLOCK, max_keys)
    for number in range(num_engines):
        router.up(number)
    return router


def prefix(number: int, blocks: int = 8) -> list[int]:
    return random.Random(number).choices(range(1000), k=blocks * BLOCK)


@dataclass
class Book:
    """What engines have, counted apart from the router."""

    up: bool = True
    requests: set[str] = field(default_factory=set)


class RouterMachine(RuleBasedStateMachine):
    open_requests: Bundle[str] = Bundle("open_requests")

    def __init__(self) -> None:
        super().__init__()
        self.books = [Book() for _ in range(3)]
        self.router = make_router(3, max_keys=40)
        self.count = 0

    def present(self) -> list[Book]:
        return [book for book in self.books if book.up] or self.books

    @rule(target=open_requests, number=st.integers(0, 5), tail=st.integers(0, 40), salt=st.sampled_from(["", "s"]))
    def route(self, number: int, tail: int, salt: str) -> str:
        self.count += 1
        name = str(self.count)
        before = {id(book): len(book.requests) for book in self.books}
        chosen = self.books[self.router.route(make_request(name, prefix(number) + [1] * tail, salt))]
        assert chosen in self.present()
        least = min(before[id(book)] for book in self.present())
        assert before[id(chosen)] <= least * SPREAD + SLACK
        chosen.requests.add(name)
        return name

    @rule(name=open_requests)
    def begin(self, name: str) -> None:
        self.router.began(name)

    @rule(name=consumes(open_requests))
    def end(self, name: str) -> None:
        self.router.ended(name)
        for book in self.books:
            book.requests.discard(name)

    @precondition(lambda self: any(book.up for book in self.books))
    @rule(number=st.integers(0, 2), for_good=st.just(False))
    def die(self, number: int, for_good: bool) -> None:
        """Its requests are routed again."""
        self.books[number].up = False
        self.router.down(number, for_good)
        for name in sorted(self.books[number].requests) if self.router.has_any_up else ():
            self.books[number].requests.remove(name)
            place = self.router.route(make_request(name, [1, 2]))
            assert self.books[place].up
            self.books[place].requests.add(name)

    @rule(number=st.integers(0, 2))
    def come_back(self, number: int) -> None:
        self.books[number].up = True
        self.router.up(number)

    @invariant()
    def the_books_agree(self) -> None:
        router, prefixes = self.router, self.router._prefixes
        for number, book in enumerate(self.books):
            assert router._open_np[number] == len(book.requests) and router._waiting_np[number] >= 0
            assert len(prefixes._keys[number]) <= 40
            assert all(router.place(name) == number for name in book.requests)
        if not any(book.requests for book in self.books):
            assert not router._waiting_np.any()
        by_key = {key: {one for one in range(3) if key in prefixes._keys[one]} for key in prefixes._engines}
        assert by_key == prefixes._engines and all(by_key.values())


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = examples(15, 120, stateful_step_count=40)


@given(st.integers(2, 5), st.integers(0, 50), st.data())
def test_a_prefix_stays_where_it_is_while_load_allows(num_engines: int, seed: int, data: st.DataObject) -> None:
    """Its tokens are worth more than the requests that are there already, up to the bound on these."""
    router = make_router(num_engines)
    first = router.route(make_request("first", prefix(seed)))
    router.began("first")
    count = data.draw(st.integers(1, min(SLACK - 1, 8 * BLOCK // REQUEST_COST - 1)))
    for number in range(count):
        name = f"same {number}"
        assert router.route(make_request(name, [*prefix(seed), number])) == first
        router.began(name)


@dataclass
class PlainEngine:
    """What the head of `router.py` says, engine by engine."""

    load: int = 0
    waiting: int = 0
    prompts: list[list[int]] = field(default_factory=list)

    def known(self, prompt: list[int]) -> int:
        blocks = [prompt[start : start + BLOCK] for start in range(0, len(prompt) - BLOCK + 1, BLOCK)]
        most = 0
        for other in self.prompts:
            same = [other[number * BLOCK : (number + 1) * BLOCK] == block for number, block in enumerate(blocks)]
            most = max(most, [*same, False].index(False))
        return most * BLOCK


@pytest.mark.parametrize("num_engines", [1, 2, 7, 40])
def test_the_cheapest_engine_gets_a_request(num_engines: int) -> None:
    draw, router = random.Random(num_engines), make_router(num_engines, max_keys=10**6)
    engines, places = [PlainEngine() for _ in range(num_engines)], dict[str, tuple[int, int]]()
    for number in range(60 + 10 * num_engines):
        prompt = prefix(draw.randrange(6), draw.randrange(1, 9)) + [2000 + number] * draw.randrange(40)
        chosen = router.route(make_request(f"{number}", prompt))
        least = min(engine.load for engine in engines)
        costs = {
            one: len(prompt) - engine.known(prompt) + engine.waiting / 2 + engine.load * REQUEST_COST
            for one, engine in enumerate(engines)
            if engine.load <= least * SPREAD + SLACK
        }
        assert costs[chosen] == min(costs.values())
        new = len(prompt) - engines[chosen].known(prompt)
        engines[chosen].load += 1
        engines[chosen].waiting += new
        engines[chosen].prompts.append(prompt)
        places[f"{number}"] = chosen, new
        if draw.random() < 0.6:
            name = draw.choice(sorted(places))
            place, waiting = places.pop(name)
            router.ended(name)
            engines[place].load -= 1
            engines[place].waiting -= waiting


def test_a_prefix_that_all_ask_for_spreads() -> None:
    router = make_router(4)
    for number in range(400):
        router.route(make_request(str(number), prefix(1, blocks=100)))
        router.began(str(number))
    loads = router._open_np.tolist()
    assert sum(loads) == 400 and max(loads) <= min(loads) * SPREAD + SLACK + 1


def test_salt_and_adapter_tell_prefixes_apart() -> None:
    router = make_router(2)
    places = {}
    for salt, adapter in (("", ""), ("a", ""), ("", "/x"), ("a", "/x")):
        name = f"{salt} {adapter}"
        places[name] = router.route(make_request(name, prefix(1), salt, adapter))
        known = router._prefixes.num_known(router._keys(make_request("", prefix(1), salt, adapter)))
        assert known == {places[name]: 8}


def test_without_prefixes_requests_are_shared_out_evenly() -> None:
    router = make_router(3)
    for number in range(99):
        router.route(make_request(str(number), prefix(1000 + number)))
    assert router._open_np.tolist() == [33, 33, 33]


def test_what_others_send_counts() -> None:
    router = make_router(2)
    router.observe(0, 20)
    assert {router.route(make_request(str(number), [1, 2, 3])) for number in range(10)} == {1}
    router.observe(0, 0)
    assert router.route(make_request("next", [1, 2, 3])) == 0


def test_routers_of_several_processes_agree_about_a_new_prefix() -> None:
    for number in range(20):
        places = {make_router(4).route(make_request(f"{number} of {front}", prefix(number))) for front in range(3)}
        assert len(places) == 1


def test_memory_is_bounded_and_the_oldest_prefix_goes_first() -> None:
    router = make_router(1, max_keys=20)
    for number in range(4):
        router.route(make_request(str(number), prefix(number)))
    known = [
        router._prefixes.num_known(router._keys(make_request("", prefix(number)))).get(0, 0) for number in range(4)
    ]
    assert known == [0, 4, 8, 8] and len(router._prefixes._keys[0]) == 20


def test_a_dead_engine_has_forgotten_all() -> None:
    router = make_router(2)
    first = router.route(make_request("first", prefix(1)))
    router.down(first)
    router.up(first)
    assert not router._prefixes.num_known(router._keys(make_request("", prefix(1))))


def test_where_all_are_down_one_that_comes_back_is_chosen() -> None:
    router = Router(3, BLOCK, 100)
    router.down(1, for_good=True)
    assert {router.route(make_request(str(number), [number])) for number in range(30)} == {0, 2}


def test_a_rank_names_the_engine_whatever_it_costs() -> None:
    """Neither its load nor a prefix that another engine knows counts. Its requests count as load for the others."""
    router = make_router(3)
    home = router.route(make_request("first", prefix(1)))
    other = (home + 1) % 3
    pinned = [router.route(make_request(f"p{number}", prefix(1)), other) for number in range(10 * SLACK)]
    assert set(pinned) == {other}
    free = [router.route(make_request(f"f{number}", [number])) for number in range(2 * SLACK)]
    assert other not in free


def test_a_request_whose_engine_is_down_goes_to_another_until_it_is_back() -> None:
    router = make_router(3)
    router.down(1)
    assert router.route(make_request("a", [1, 2]), 1) != 1
    router.up(1)
    assert router.route(make_request("b", [1, 2]), 1) == 1
    for number in range(3):
        router.down(number)
    assert router.route(make_request("c", [1, 2]), 1) == 1, "all may come back, and it waits where it is to run"
    router.down(1, for_good=True)
    assert router.route(make_request("c", [1, 2]), 1) != 1
