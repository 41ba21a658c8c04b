"""One KV block, and the blocks one request holds."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.inputs.attachments import KeysSpan

NULL_BLOCK_ID = 0  # stands in tables where nothing is kept; never allocated


class Block:
    """A block of the pool. A digest makes it a cached one."""

    __slots__ = ("digest", "group", "id", "ref")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.ref = 0  # tables naming this block
        self.group = 0  # meaningful with a digest
        self.digest = b""  # chain hash of all tokens up to the block's end; empty = not in the prefix cache


class PoolBlocks(dict[int, Block]):
    """The blocks of a pool by id, each made when it is first named: a pool has hundreds of thousands, and a start
    would wait for them."""

    def __missing__(self, block_id: int) -> Block:
        block = self[block_id] = Block(block_id)
        return block


class RequestBlocks:
    """The block tables of one request, and the hashes of its tokens and its source (which outlive a preemption)."""

    __slots__ = ("firsts", "hashes", "lacks_source", "root", "source_hashes", "source_len", "spans", "tables")

    def __init__(self, num_groups: int, root: bytes, source_len: int = 0, spans: Sequence[KeysSpan] = ()) -> None:
        self.root = root  # parent of the first hash
        self.spans = spans  # of its prompt, whose keys are made of something else than tokens
        self.source_len = source_len  # positions of what it brings for cross attention
        self.source_hashes: list[bytes] = []  # of the blocks that hold these
        self.lacks_source = False  # when it began, no blocks held them: they are to be written by the first step
        self.hashes: list[bytes] = []  # of the leading full blocks of known tokens, as far as computed
        self.tables: tuple[list[Block], ...] = tuple([] for _ in range(num_groups))  # per group
        self.firsts = [0] * num_groups  # per group: leading entries that are the null block
