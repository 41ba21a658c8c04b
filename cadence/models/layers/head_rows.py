"""Where a checkpoint has the rows of queries, keys and values that are ours.

| | in the checkpoint | ours |
|---|---|---|
| neighbours | of each head the entries that turn together lie side by side: x0 y0 x1 y1 … | x0 x1 … y0 y1 … |
| grouped | of each head of keys the queries, the key and the value follow one another | all queries, keys, values |

A model computes the same either way, since queries and keys have one order: the rows are put into ours as they are
read, and kernels know one kind of rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.layers.rank_share import Held, Picked

RowOrder = tuple[range, ...]  # of rows as a checkpoint has them, one run after the other: ours


def pair_order(entries: int, pairs: int, start: int = 0) -> RowOrder:
    """Of the entries of a head, from `start` on, of which so many leading ones turn: the first of each pair, then the
    second, then the rest."""
    turned = start + pairs
    order = (range(start, turned, 2), range(start + 1, turned, 2), range(turned, start + entries))
    return tuple(run for run in order if run)


def picked_heads(held: Held, shape: AttentionShape, pairs: int, *, grouped: bool) -> Mapping[str, Picked]:
    """Of parts q, k and v, as `Held` has it. held: as if a checkpoint had our order; shape: of all heads; pairs:
    entries of a head that turn with their neighbours, 0 = none"""
    if not pairs and not grouped:
        return {}
    found = {}
    for part, order in _orders(shape, pairs, grouped).items():
        count, own = held.stored_rows(part)
        found[part] = count, _at(order, own)
    return found


def _orders(shape: AttentionShape, pairs: int, grouped: bool) -> Mapping[str, RowOrder]:
    """By part that lies otherwise, and "" = all of them in one tensor."""
    counts = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    turned = {"q": pairs, "k": pairs, "v": 0}
    heads: Mapping[str, Sequence[int]] = _grouped(shape) if grouped else _stacked(counts)

    def order(part: str, places: Iterable[int]) -> RowOrder:
        size = shape.head_dim
        return tuple(run for place in places for run in pair_order(size, turned[part], place * size))

    whole = tuple(run for part in counts for run in order(part, heads[part]))
    apart = {part: order(part, range(counts[part])) for part in counts if turned[part]}
    return {"": whole, **apart}


def _stacked(counts: Mapping[str, int]) -> dict[str, range]:
    """Of each part, the places of its heads in one matrix."""
    places, before = {}, 0
    for part, count in counts.items():
        places[part] = range(before, before + count)
        before += count
    return places


def _grouped(shape: AttentionShape) -> dict[str, list[int]]:
    queries = shape.num_heads // shape.num_kv_heads
    starts = range(0, shape.num_kv_heads * (queries + 2), queries + 2)
    return {
        "q": [start + query for start in starts for query in range(queries)],
        "k": [start + queries for start in starts],
        "v": [start + queries + 1 for start in starts],
    }


def _at(order: RowOrder, own: RowOrder) -> RowOrder:
    """Of all rows in our order, those at the places of `own`."""
    found: list[range] = []
    for places in own:
        start = 0
        for run in order:
            part = run[max(places.start - start, 0) : max(places.stop - start, 0)]
            found += [part] if part else []
            start += len(run)
    return tuple(found)
