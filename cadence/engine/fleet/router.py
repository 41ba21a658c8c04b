"""Which of several engines gets a request. Pure: it is told which requests began and ended, and when engines come and
go; it has neither clock nor socket.

The cost of an engine is in tokens: those of the request that it would have to compute (all but the prefix it has seen),
half of those that wait there, and a share for each request it has. The cheapest engine gets the request. An engine that
has far more requests than the least busy one is no choice, however much of the prompt it knows: a prefix that many ask
for is soon known to more engines than one. A request that is for one engine (`data_parallel_rank`) gets it whatever it
costs, as long as it is up; while it is down, such a request goes to the cheapest one, as all others do.

Columns by engine make a choice some array operations, whatever their number; Python only for the blocks of the prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from cadence.core.contract.request import EngineRequest
from cadence.scheduler.kv.hashing import chained, root_digest

MOST_KEYS = 512  # blocks of a prompt that are looked up
REQUEST_COST = 32  # tokens: what an open request costs those beside it
SLACK = 8  # requests that an engine may have beyond SPREAD times those of the least busy one
SPREAD = 1.5
NO_ENGINES: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Routed:
    engine: int
    waiting: int  # tokens; 0 once it has begun


class KnownPrefixes:
    """Blocks that were sent to each engine, and which engines a block was sent to."""

    def __init__(self, num_engines: int) -> None:
        self._keys: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(num_engines)]  # the newest last
        self._engines: dict[bytes, set[int]] = {}

    def num_known(self, keys: list[bytes]) -> dict[int, int]:
        """By engine: leading blocks of these that it has seen. Engines that have seen none are left out."""
        found: dict[int, int] = {}
        left: set[int] | frozenset[int] = self._engines.get(keys[0], NO_ENGINES) if keys else NO_ENGINES
        for count, key in enumerate(keys):
            engines = self._engines.get(key, NO_ENGINES)
            if not left <= engines:
                found.update(dict.fromkeys(left - engines, count))
                left = left & engines
            if not left:
                return found
        found.update(dict.fromkeys(left, len(keys)))
        return found

    def remember(self, engine: int, keys: list[bytes], most: int) -> None:
        """The beginning of a prompt last, so that the oldest to go is an end: without its beginning none is found."""
        known, engines = self._keys[engine], self._engines
        for key in reversed(keys):
            if key in known:
                known.move_to_end(key)
            else:
                known[key] = None
                if key in engines:
                    engines[key].add(engine)
                else:
                    engines[key] = {engine}
        while len(known) > most:
            self._leave(engine, known.popitem(last=False)[0])

    def forget(self, engine: int) -> None:
        for key in self._keys[engine]:
            self._leave(engine, key)
        self._keys[engine].clear()

    def _leave(self, engine: int, key: bytes) -> None:
        engines = self._engines[key]
        engines.discard(engine)
        if not engines:
            del self._engines[key]


class Router:
    """All engines are down at first."""

    def __init__(self, num_engines: int, block_size: int, max_keys: int) -> None:
        """max_keys: blocks that are remembered of each engine; more than its cache holds are of no use."""
        self._is_up_np = np.zeros(num_engines, dtype=np.bool_)  # [engines]
        self._is_gone_np = np.zeros(num_engines, dtype=np.bool_)  # [engines] for good
        self._open_np = np.zeros(num_engines, dtype=np.int64)  # [engines] requests of this router
        self._elsewhere_np = np.zeros(num_engines, dtype=np.int64)  # [engines] requests of others, as last told
        self._waiting_np = np.zeros(num_engines, dtype=np.int64)  # [engines] tokens of requests that have none yet
        self._prefixes = KnownPrefixes(num_engines)
        self._block_size = block_size
        self.max_keys = max_keys
        self._places: dict[str, _Routed] = {}  # by request id

    def route(self, request: EngineRequest, pinned: int | None = None) -> int:
        """-> the engine that gets it. It counts as being there until `ended`; who is routed again leaves its place.
        pinned: the engine that it is for; None = any"""
        self.ended(request.request_id)
        keys = self._keys(request)
        tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        new_np = np.full(len(self._open_np), tokens, dtype=np.int64)  # [engines] tokens that each would compute
        for number, count in self._prefixes.num_known(keys).items():
            new_np[number] -= count * self._block_size
        number = pinned if pinned is not None and self._present()[pinned] else self._cheapest(request, keys, new_np)
        waiting = int(new_np[number])
        self._open_np[number] += 1
        self._waiting_np[number] += waiting
        self._places[request.request_id] = _Routed(number, waiting)
        self._prefixes.remember(number, keys, self.max_keys)
        return number

    def place(self, request_id: str) -> int | None:
        found = self._places.get(request_id)
        return found.engine if found is not None else None

    def began(self, request_id: str) -> None:
        """It has a token: its prompt waits no longer."""
        place = self._places.get(request_id)
        if place is not None and place.waiting:
            self._waiting_np[place.engine] -= place.waiting
            place.waiting = 0

    def ended(self, request_id: str) -> None:
        place = self._places.pop(request_id, None)
        if place is not None:
            self._waiting_np[place.engine] -= place.waiting
            self._open_np[place.engine] -= 1

    def up(self, engine: int) -> None:
        self._is_up_np[engine] = True

    def down(self, engine: int, for_good: bool = False) -> None:
        """It died, and its cache with it."""
        self._is_up_np[engine] = False
        self._is_gone_np[engine] |= for_good
        self._prefixes.forget(engine)

    def observe(self, engine: int, num_requests: int) -> None:
        """So many requests are there, of this router and of others."""
        self._elsewhere_np[engine] = max(0, num_requests - int(self._open_np[engine]))

    def forget_prefixes(self) -> None:
        for engine in range(len(self._open_np)):
            self._prefixes.forget(engine)

    @property
    def has_any_up(self) -> bool:
        return bool(self._is_up_np.any())

    def _cheapest(self, request: EngineRequest, keys: list[bytes], new_np: npt.NDArray[np.int64]) -> int:
        """new_np: [engines] tokens that each would compute"""
        load_np = self._open_np + self._elsewhere_np
        cost_np = new_np + self._waiting_np / 2 + load_np * REQUEST_COST
        present_np = self._present()
        cost_np[~(present_np & (load_np <= load_np[present_np].min() * SPREAD + SLACK))] = np.inf
        cheapest: list[int] = np.flatnonzero(cost_np == cost_np.min()).tolist()
        return cheapest[0] if len(cheapest) == 1 else _tie_break(keys, request.request_id, cheapest)

    def _present(self) -> npt.NDArray[np.bool_]:
        """[engines] whether it is up, or where none is may come back."""
        if self._is_up_np.any():
            return self._is_up_np
        return ~self._is_gone_np if not self._is_gone_np.all() else np.ones_like(self._is_gone_np)

    def _keys(self, request: EngineRequest) -> list[bytes]:
        """Of the blocks of its prompt, under its salt and what is attached."""
        root = root_digest(request.cache_salt, request.keys_name)
        count = min(len(request.prompt_token_ids) // self._block_size, MOST_KEYS, self.max_keys)
        tokens = request.prompt_token_ids[: count * self._block_size]
        return list(chained(root, tokens, self._block_size, request.keys_spans))


def _tie_break(keys: list[bytes], request_id: str, numbers: list[int]) -> int:
    """Among engines of equal cost routers of several processes choose the same one for the same prompt."""
    what = crc32(keys[0] if keys else request_id.encode("utf-8", "surrogatepass"))
    return min(numbers, key=lambda number: crc32(number.to_bytes(4, "little"), what))
