"""What one of the ranks that share each layer has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.collectives import Collectives

Share = tuple[int, range]  # how many there are, and those of this rank
Picked = tuple[int, tuple[range, ...]]  # the same, one range after another

_UNITS = (256, 64, 32, 16)  # columns that quantised blocks and kernels like to have together
_VOCABULARY_UNIT = 16  # rows that packed matrices have side by side


@dataclass(frozen=True, slots=True)
class Held:
    """The rows and columns of a checkpoint's matrix that a linear map has; of a fused one, the rows of each part."""

    rows: Mapping[str, Share]  # by part ("" = not divided): how many there are, and those it has
    columns: Share
    picked: Mapping[str, Picked] = field(default_factory=dict)  # of parts whose rows may lie there otherwise than ours

    @property
    def is_all(self) -> bool:
        return all(len(own) == count for count, own in (*self.rows.values(), self.columns))

    def has(self, part: str) -> bool:
        """All of a tensor of a checkpoint as it lies there."""
        return self.is_all and part not in self.picked

    @property
    def sums(self) -> bool:
        """Whether products are a term of what all ranks have together."""
        return len(self.columns[1]) < self.columns[0]

    @property
    def own_rows(self) -> dict[str, int]:
        """By part."""
        return {name: len(own) for name, (_, own) in self.rows.items()}

    def stored_rows(self, part: str) -> Picked:
        """Of a part in the checkpoint, of several ("q+k") or of all in one -> (rows in all, those that are held, in our
        order)"""
        if part in self.picked:
            return self.picked[part]
        before, found = 0, []
        for count, own in (self.rows[name] for name in (part.split("+") if part else self.rows)):
            found.append(range(before + own.start, before + own.stop))
            before += count
        return before, tuple(found)


def all_of(rows: int | Mapping[str, int], columns: int) -> Held:
    named = {"": rows} if isinstance(rows, int) else rows
    return Held({name: (count, range(count)) for name, count in named.items()}, (columns, range(columns)))


def part_of(count: int, ranks: Collectives, unit: int = 1) -> range:
    """Of so many, those of this rank: in whole units, as evenly as can be, the first ranks having more."""
    each, more = divmod(count // unit, ranks.size)
    start = ranks.rank * each + min(ranks.rank, more)
    return range(start * unit, (start + each + (ranks.rank < more)) * unit)


def vocabulary_part(count: int, ranks: Collectives) -> range:
    """Of the rows that tokens have: as many for each rank, so that logits of all can be gathered; the last ranks may
    have some in common with those before them."""
    unit = _VOCABULARY_UNIT if count >= _VOCABULARY_UNIT * ranks.size else 1
    each = min(-(-count // (ranks.size * unit)) * unit, count)
    start = min(ranks.rank * each, count - each)
    return range(start, start + each)


def inner_part(count: int, ranks: Collectives) -> range:
    """Of the values between the two maps of a feed-forward block."""
    if count < ranks.size:
        message = f"tensor_parallel_size={ranks.size} is more than the {count} inner values of a feed-forward block"
        raise ConfigError(message, "tensor_parallel_size")
    fits = (unit for unit in _UNITS if count % unit == 0 and count // unit >= ranks.size)
    return part_of(count, ranks, next(fits, 1))


def expert_part(count: int, ranks: Collectives) -> range:
    """Of the experts of a layer, where ranks have whole ones."""
    if count < ranks.size:
        message = f"enable_expert_parallel: {count} experts are fewer than the {ranks.size} ranks that share them"
        raise ConfigError(message, "enable_expert_parallel")
    return part_of(count, ranks)


def grouped_heads(heads: int, groups: int, ranks: Collectives) -> tuple[Share, Share]:
    """Of heads that share what there is `groups` times, and of that: heads of a group stay together; where there are
    fewer groups than ranks, several ranks have the same."""
    if groups >= ranks.size:
        own = part_of(groups, ranks)
        each = heads // groups
        return (heads, range(own.start * each, own.stop * each)), (groups, own)
    if ranks.size % groups or heads % ranks.size:
        raise ConfigError(
            f"tensor_parallel_size={ranks.size} does not divide {heads} heads of queries with {groups} of keys",
            "tensor_parallel_size",
        )
    group = ranks.rank * groups // ranks.size
    return (heads, part_of(heads, ranks)), (groups, range(group, group + 1))


def times(share: Share, size: int) -> Share:
    """Of entries, so many of each."""
    count, own = share
    return count * size, range(own.start * size, own.stop * size)


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The heads of queries and of keys that this rank attends with."""

    shape: AttentionShape  # of these alone
    queries: Share  # in all, own
    keys: Share

    @classmethod
    def of(cls, shape: AttentionShape, ranks: Collectives) -> HeadShare:
        """Heads that share keys stay together; where there are fewer keys than ranks, several ranks have the same."""
        queries, keys = grouped_heads(shape.num_heads, shape.num_kv_heads, ranks)
        own_queries = queries[1]
        own = replace(
            shape, num_heads=len(own_queries), num_kv_heads=len(keys[1]), bias=shape.bias.of_heads(own_queries)
        )
        return cls(own, queries, keys)

    @property
    def queries_of_dim(self) -> Share:
        return times(self.queries, self.shape.head_dim)

    @property
    def keys_of_dim(self) -> Share:
        return times(self.keys, self.shape.head_dim)
