"""Which of several engines gets a request. Pure: it is told which requests began and ended, and when engines come and
go; it has neither clock nor socket.

The cost of an engine is in tokens: those of the request that it would have to compute (all but the prefix it has seen),
half of those that wait there, and a share for each request it has. The cheapest engine gets the request. An engine that
has far more requests than the least busy one is no choice, however much of the prompt it knows: a prefix that many ask
for is soon known to more engines than one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from cadence.core.request import EngineRequest
from cadence.scheduler.kv.hashing import chained, root_digest

MOST_KEYS = 512  # blocks of a prompt that are looked up
REQUEST_COST = 32  # tokens: what an open request costs those beside it
SLACK = 8  # requests that an engine may have beyond SPREAD times those of the least busy one
SPREAD = 1.5


@dataclass(slots=True)
class _EngineLoad:
    is_up: bool = False
    is_gone: bool = False  # for good
    open: int = 0  # requests of this router
    elsewhere: int = 0  # requests of others, as last told
    waiting: int = 0  # tokens of requests that have none of their own yet
    keys: OrderedDict[bytes, None] = field(default_factory=OrderedDict)  # of blocks sent there, the newest last

    @property
    def load(self) -> int:
        return self.open + self.elsewhere


@dataclass(slots=True)
class _Routed:
    engine: int
    waiting: int  # tokens; 0 once it has begun


class Router:
    """All engines are down at first."""

    def __init__(self, num_engines: int, block_size: int, max_keys: int) -> None:
        """max_keys: blocks that are remembered of each engine; more than its cache holds are of no use."""
        self._engines = [_EngineLoad() for _ in range(num_engines)]
        self._block_size = block_size
        self.max_keys = max_keys
        self._places: dict[str, _Routed] = {}  # by request id

    def route(self, request: EngineRequest) -> int:
        """-> the engine that gets it. It counts as being there until `ended`; who is routed again leaves its place."""
        self.ended(request.request_id)
        keys = self._keys(request)
        tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        new = {number: tokens - self._num_known(number, keys) for number in self._choices()}
        number = min(new, key=lambda one: (self._cost(one, new[one]), _tie_break(keys, request.request_id, one)))
        engine = self._engines[number]
        engine.open += 1
        engine.waiting += new[number]
        self._places[request.request_id] = _Routed(number, new[number])
        self._remember(engine, keys)
        return number

    def place(self, request_id: str) -> int | None:
        found = self._places.get(request_id)
        return found.engine if found is not None else None

    def began(self, request_id: str) -> None:
        """It has a token: its prompt waits no longer."""
        place = self._places.get(request_id)
        if place is not None and place.waiting:
            self._engines[place.engine].waiting -= place.waiting
            place.waiting = 0

    def ended(self, request_id: str) -> None:
        place = self._places.pop(request_id, None)
        if place is not None:
            self._engines[place.engine].waiting -= place.waiting
            self._engines[place.engine].open -= 1

    def up(self, engine: int) -> None:
        self._engines[engine].is_up = True

    def down(self, engine: int, for_good: bool = False) -> None:
        """It died, and its cache with it."""
        self._engines[engine].is_up = False
        self._engines[engine].is_gone |= for_good
        self._engines[engine].keys.clear()

    def observe(self, engine: int, num_requests: int) -> None:
        """So many requests are there, of this router and of others."""
        self._engines[engine].elsewhere = max(0, num_requests - self._engines[engine].open)

    def forget_prefixes(self) -> None:
        for engine in self._engines:
            engine.keys.clear()

    @property
    def has_any_up(self) -> bool:
        return any(engine.is_up for engine in self._engines)

    def _choices(self) -> list[int]:
        """Engines that are up, and where none is those that may come back; of these, the ones that are not too busy."""
        numbers = range(len(self._engines))
        present = [number for number in numbers if self._engines[number].is_up]
        present = present or [number for number in numbers if not self._engines[number].is_gone] or list(numbers)
        most = min(self._engines[number].load for number in present) * SPREAD + SLACK
        return [number for number in present if self._engines[number].load <= most]

    def _cost(self, number: int, new_tokens: int) -> float:
        engine = self._engines[number]
        return new_tokens + engine.waiting / 2 + engine.load * REQUEST_COST

    def _keys(self, request: EngineRequest) -> list[bytes]:
        """Of the blocks of its prompt, under its salt and its adapter."""
        adapter = request.adapter
        root = root_digest(request.cache_salt, (adapter.digest or adapter.path) if adapter is not None else "")
        count = min(len(request.prompt_token_ids) // self._block_size, MOST_KEYS, self.max_keys)
        return list(chained(root, request.prompt_token_ids[: count * self._block_size], self._block_size))

    def _num_known(self, number: int, keys: Iterable[bytes]) -> int:
        """Tokens of the prompt that the engine has seen."""
        known, count = self._engines[number].keys, 0
        for key in keys:
            if key not in known:
                break
            count += 1
        return count * self._block_size

    def _remember(self, engine: _EngineLoad, keys: list[bytes]) -> None:
        """The beginning of a prompt last, so that the oldest to go is an end: without its beginning none is found."""
        for key in reversed(keys):
            engine.keys[key] = None
            engine.keys.move_to_end(key)
        while len(engine.keys) > self.max_keys:
            engine.keys.popitem(last=False)


def _tie_break(keys: list[bytes], request_id: str, number: int) -> int:
    """Among engines of equal cost routers of several processes choose the same one for the same prompt."""
    what = keys[0] if keys else request_id.encode("utf-8", "surrogatepass")
    return crc32(what + number.to_bytes(4, "little"))
