"""The generator: case number N of a seed is always the same request."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.hostile import large, raw_requests
from tests.hostile.bodies import Pairs, join, pairs_of, with_field
from tests.hostile.case import Case
from tests.hostile.schema import Endpoint, Slot, endpoints, field_slots, kinds, seed_slots
from tests.hostile.seeds import LONG, ON_DEMAND, SEEDS, Body
from tests.hostile.values import Value, boundaries, example, fixed, largest
from tests.hostile.wire import JSON, Request

ROUND = 40  # cases of which every kind has its share


class Cases:
    """`document`: the server's OpenAPI document. `ids`: path parameters that exist (responses, models)."""

    def __init__(self, document: Mapping[str, Any], seed: int, ids: Sequence[str] = ()) -> None:
        self.seed = seed
        self._ids = tuple(ids)
        every = endpoints(document)
        self._with_body = [one for one in every if one.fields]
        self._without_body = [one for one in every if not one.fields]
        self._streaming = [one for one in self._with_body if one.path in LONG]
        self._slots = _all_slots(self._with_body)
        self._fixed = fixed()
        self._examples = [(n, s) for one in self._with_body for n, s in one.fields.items()]
        random.Random(f"{seed} slots").shuffle(self._slots)

    @property
    def one_turn(self) -> int:
        """In so many cases every field has its turn."""
        return -(-len(self._slots) // 20) * ROUND

    def small(self, count: int) -> Iterator[Case]:
        """Those of the first `count` that are not made to be large."""
        return (self.case(number) for number in range(count) if number % ROUND != ROUND - 1)

    def case(self, number: int) -> Case:
        """Twenty of forty set one field; every field has its turn before any has a second."""
        rng = random.Random(f"{self.seed} {number}")
        turn, kind = divmod(number, ROUND)
        if kind < 20:
            return self._one_field(number, turn * 20 + kind, rng)
        if kind < 29:
            return self._several_fields(number, rng)
        if kind < 36:
            return self._raw(number, kind, rng)
        if kind < 39:
            return self._abandoned(number, rng)
        return self._large(number, rng)

    def _one_field(self, number: int, turn: int, rng: random.Random) -> Case:
        endpoint, body, slot = self._slots[turn % len(self._slots)]
        value = self._value(slot, rng)
        pairs = with_field(pairs_of(body), slot.field, slot.fill(value.text))
        if rng.random() < 0.05:  # the good value first, the hostile one after it: which counts?
            pairs = [*pairs_of(body), (slot.field, slot.fill(value.text))]
        if slot.field != "stream" and "stream" in endpoint.fields and rng.random() < 0.25:
            pairs = with_field(pairs, "stream", b"true")
        return _json_case(number, f"{endpoint} {slot.path} = {value.name}", endpoint, body, pairs)

    def _several_fields(self, number: int, rng: random.Random) -> Case:
        """A valid body, several valid fields beside it, one to three hostile ones, sometimes an unknown key."""
        endpoint = rng.choice(self._with_body)
        body = rng.choice(_seeds(endpoint))
        pairs = pairs_of(body)
        names = rng.sample(sorted(endpoint.fields), min(len(endpoint.fields), rng.randint(1, 8)))
        told = []
        at_most = rng.random() < 0.2
        for name in names:
            if name not in body:
                text = largest(endpoint.fields[name]) if at_most else example(endpoint.fields[name], rng)
                pairs = with_field(pairs, name, text)
        if at_most:
            return _json_case(number, f"{endpoint} {', '.join(names)} at most", endpoint, body, pairs)
        for name in rng.sample(sorted(endpoint.fields), min(len(endpoint.fields), rng.choice((1, 1, 2, 3)))):
            slot = rng.choice(field_slots(name, endpoint.fields[name]))
            value = self._value(slot, rng)
            told.append(f"{slot.path} = {value.name}")
            pairs = with_field(pairs, name, slot.fill(value.text))
        if rng.random() < 0.25:
            name = rng.choice(("unknown", "Prompt", "promt", "", "__proto__", "a" * 3000, "\u0301" * 500, "model "))
            pairs.append((name, rng.choice(self._fixed).text))
            told.append(f"unknown {name[:12]!r}")
        rng.shuffle(pairs)
        return _json_case(number, f"{endpoint} {'; '.join(told)}", endpoint, body, pairs)

    def _raw(self, number: int, kind: int, rng: random.Random) -> Case:
        if kind in (34, 35):
            return raw_requests.target_case(number, rng.choice(self._without_body), self._ids, rng)
        endpoint = rng.choice(self._with_body)
        good = raw_requests.good_body(rng.choice(_seeds(endpoint)))
        if kind < 32:
            return raw_requests.body_case(number, endpoint, good, rng)
        return (raw_requests.framing_case if kind == 32 else raw_requests.head_case)(number, endpoint, good, rng)

    def _abandoned(self, number: int, rng: random.Random) -> Case:
        endpoint = rng.choice(self._streaming)
        body = {**LONG[endpoint.path], "seed": rng.randrange(9)} if "seed" in endpoint.fields else LONG[endpoint.path]
        leave_after = rng.choice((0, 1, 20, 200, 1000, 5000))
        headers = (JSON, ("connection", "close"))  # an answer that is shorter is read to its end
        request = Request("POST", endpoint.path, headers, raw_requests.good_body(body))
        return Case(number, f"{endpoint} left after {leave_after} bytes", request, leave_after=leave_after)

    def _large(self, number: int, rng: random.Random) -> Case:
        endpoint, size = rng.choice(self._with_body), large.draw_size(rng)
        chunk = rng.choice((0, 0, 0, 2**16))
        if rng.random() < 0.3:
            name = rng.choice(tuple(large.BODIES))
            request = Request("POST", endpoint.path, (JSON,), large.BODIES[name](size), chunk)
            return Case(number, f"{endpoint} large body: {name}", request)
        body = rng.choice(_seeds(endpoint))
        field = rng.choice([*body] if rng.random() < 0.7 else sorted(endpoint.fields))
        name = rng.choice(tuple(large.VALUES))
        pairs = with_field(pairs_of(body), field, large.VALUES[name](size))
        request = Request("POST", endpoint.path, (JSON,), join(pairs), chunk)
        return Case(number, f"{endpoint} {field} = large {name}", request)

    def _value(self, slot: Slot, rng: random.Random) -> Value:
        near = list(boundaries(slot.schema))
        if near and rng.random() < 0.3:
            return rng.choice(near)
        if rng.random() < 0.1:
            name, schema = rng.choice(self._examples)
            return Value(f"a value of {name}", example(schema, rng))
        wanted = kinds(slot.schema)
        own = [
            value for value in self._fixed if value.kind in wanted or (value.kind == "number" and "integer" in wanted)
        ]
        return rng.choice(own if own and rng.random() < 0.6 else self._fixed)


def _json_case(number: int, name: str, endpoint: Endpoint, body: Body, pairs: Pairs) -> Case:
    known = frozenset((*(key for key, _ in pairs), *body, *endpoint.required))
    return Case(number, name, Request("POST", endpoint.path, body=join(pairs)), known)


def _seeds(endpoint: Endpoint) -> tuple[Body, ...]:
    return SEEDS.get(endpoint.path) or ON_DEMAND.get(endpoint.path) or ({},)


def _all_slots(with_body: Sequence[Endpoint]) -> list[tuple[Endpoint, Body, Slot]]:
    """Every field of every endpoint, what lies inside it by the schema, and by the valid bodies."""
    found = []
    for endpoint in with_body:
        plain = _seeds(endpoint)[0]
        for name, schema in endpoint.fields.items():
            found += [(endpoint, plain, slot) for slot in field_slots(name, schema)]
        for body in _seeds(endpoint):
            beside = [name for name in body if name not in plain]  # such a field may matter in this company alone
            found += [(endpoint, body, Slot(name, name, endpoint.fields.get(name, {}))) for name in beside]
            for name, value in body.items():
                found += [(endpoint, body, slot) for slot in seed_slots(name, value)]
    return found
