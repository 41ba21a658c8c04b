"""The KV block manager by itself: free list, pool, hash chain, prefix hits per group, sizing."""

from __future__ import annotations

import random

import pytest

from cadence.core.errors import ConfigError
from cadence.scheduler.kv.coordinator import KVCoordinator
from cadence.scheduler.kv.free_list import FreeList
from cadence.scheduler.kv.hashing import extend_hashes, root_digest
from cadence.scheduler.kv.kinds.block import Block, PoolBlocks, RequestBlocks
from cadence.scheduler.kv.kinds.choose import kinds_of
from cadence.scheduler.kv.kinds.chunked import ChunkedKind
from cadence.scheduler.kv.kinds.sliding import SlidingKind
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.kv.pool import BlockPool
from cadence.scheduler.kv.prefix import PrefixIndex
from cadence.scheduler.kv.sizing import blocks_needed, check_pool, max_len_that_fits
from tests.helpers.toy_model import make_layout
from tests.helpers.toy_source import chunks_of, first_visible


def ids(blocks: object) -> list[int]:
    return [block.id for block in blocks]  # type: ignore[attr-defined]


def test_free_list_keeps_order_and_removes_from_the_middle() -> None:
    blocks = PoolBlocks()
    free = FreeList(blocks, 1, 6)
    free.remove(blocks[3])
    free.prepend([blocks[3]])
    free.remove(blocks[1])
    free.append(blocks[1])
    assert (ids(free), free.size) == ([3, 2, 4, 5, 1], 5)
    assert [block.id for block in free.pop(5)] == [3, 2, 4, 5, 1]
    assert (ids(free), free.size) == ([], 0)
    free.append(blocks[2])
    assert ids(free) == [2]
    assert (ids(FreeList(blocks, 1, 1)), FreeList(blocks, 1, 1).size) == ([], 0)


def test_a_pool_makes_the_blocks_that_are_used() -> None:
    pool = BlockPool(1 << 18, 1)
    pool.release(pool.allocate(3))
    pool.allocate(1)
    assert set(pool.blocks) == {pool.null.id, 1, 2, 3}


def test_pool_never_hands_out_the_null_block() -> None:
    pool = BlockPool(5, 1)
    assert sorted(ids(pool.allocate(4))) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_pool_reuses_uncached_blocks_first_then_the_least_recently_used() -> None:
    pool = BlockPool(5, 1)
    a, b, c, d = pool.allocate(4)
    for block, digest in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.index.add(block, 0, digest)
    pool.release([b, a, d, c])
    pool.acquire(b)  # used again: now the most recent
    pool.release([b])
    assert pool.allocate(1) == [d]
    assert pool.allocate(1) == [a]
    assert set(pool.index.by_group[0]) == {b"b", b"c"}, "evicted only when reused"
    assert pool.allocate(1) == [c]


def test_shared_block_is_free_when_the_last_user_lets_go() -> None:
    pool = BlockPool(3, 1)
    (block,) = pool.allocate(1)
    pool.acquire(block)
    pool.release([block])
    assert (block.ref, pool.num_free) == (1, 1)
    pool.release([block, pool.null])
    assert (block.ref, pool.num_free) == (0, 2)


def test_first_block_with_a_digest_stays_in_the_index() -> None:
    index = PrefixIndex(2)
    first, second = Block(1), Block(2)
    index.add(first, 0, b"x")
    index.add(second, 0, b"x")
    assert index.by_group[0] == {b"x": first} and second.digest == b""
    index.drop(second)
    assert index.by_group[0] == {b"x": first}
    index.add(second, 1, b"x")
    assert index.by_group[1] == {b"x": second}, "groups do not share blocks"


def chain(tokens: list[int], salt: str = "", block_size: int = 2) -> list[bytes]:
    blocks = RequestBlocks(1, root_digest(salt))
    extend_hashes(blocks, tokens, block_size, len(tokens) // block_size)
    return blocks.hashes


def test_digest_covers_everything_before_it_and_the_salt() -> None:
    base = chain([1, 2, 3, 4, 5, 6])
    assert len(base) == len(set(base)) == 3
    assert chain([1, 2, 3, 4, 5, 7])[:2] == base[:2]
    assert chain([1, 2, 3, 4, 5, 7])[2] != base[2]
    assert not set(chain([9, 2, 3, 4, 5, 6])) & set(base)
    assert not set(chain([1, 2, 3, 4, 5, 6], salt="s")) & set(base)


def test_hash_chain_is_the_same_computed_at_once_or_bit_by_bit() -> None:
    tokens = list(range(12))
    blocks = RequestBlocks(1, root_digest(""))
    for known in range(len(tokens) + 1):
        extend_hashes(blocks, tokens[:known], 2, known // 2)
    assert blocks.hashes == chain(tokens)


def brute_force_hit(window: int, size: int, cached: set[int], limit: int) -> int:
    """The longest prefix in blocks such that the next query finds all it reads."""
    for end in range(limit, 0, -1):
        first = first_visible(window, end * size)
        if all(position // size in cached for position in range(first, end * size)):
            return end
    return 0


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("window", [0, 1, 2, 3, 4, 5, 8, 9, *[chunks_of(count) for count in (1, 2, 3, 4, 8, 9)]])
def test_longest_hit_of_one_kind_is_that_of_brute_force(window: int, size: int) -> None:
    rng = random.Random(0)
    (kind,) = kinds_of(make_layout((window,), size), 1)
    hashes = [bytes([number]) for number in range(12)]
    for _ in range(100):
        cached = {number for number in range(12) if rng.random() < 0.7}
        limit = rng.randrange(13)
        found = kind.longest_hit({hashes[number]: Block(number) for number in cached}, hashes, limit)
        assert found == brute_force_hit(window, size, cached, limit)


def test_longest_hit_of_all_groups_is_acceptable_to_each_and_the_longest_such() -> None:
    rng = random.Random(1)
    windows, size = (0, 3, chunks_of(6)), 2
    coordinator = KVCoordinator(make_layout(windows, size), 1)
    hashes = [bytes([number]) for number in range(10)]
    for _ in range(300):
        cached = [{number for number in range(10) if rng.random() < 0.8} for _ in windows]
        index = PrefixIndex(3)
        for group, numbers in enumerate(cached):
            for number in numbers:
                index.add(Block(number), group, hashes[number])
        ends = (
            end
            for end in range(10, -1, -1)
            if all(brute_force_hit(w, size, c, end) == end for w, c in zip(windows, cached, strict=True))
        )
        assert coordinator.longest_hit(index, hashes, 10) == next(ends)


def test_sliding_prefix_hit_takes_only_the_window() -> None:
    manager = KVManager(make_layout((0, 3), 2), 40, caching=True, in_flight_tokens=8)
    first = manager.new_tables("")
    tokens = list(range(9))
    manager.begin(first, manager.find_prefix(first, tokens, read=True), 9)
    manager.register(first, tokens, 0, 4)
    manager.release_outside(first, 8)
    assert first.firsts == [0, 3] and ids(first.tables[1][:3]) == [0, 0, 0]
    second = manager.new_tables("")
    hit = manager.find_prefix(second, tokens, read=True)
    assert hit.num_blocks == 4
    assert ids(hit.tables[0]) == ids(first.tables[0][:4])
    assert ids(hit.tables[1]) == [0, 0, 0, first.tables[1][3].id]
    assert manager.find_prefix(second, tokens[:8], read=True).num_blocks == 3, "one token is left to compute"
    assert manager.find_prefix(second, tokens, read=False).num_blocks == 0
    assert manager.find_prefix(manager.new_tables("salt"), tokens, read=True).num_blocks == 0


def test_a_window_is_given_back_exactly_when_no_query_reads_it() -> None:
    group = SlidingKind(2, 3, 1)
    for computed in range(20):
        read = max(0, computed - 2)  # first position the query at `computed` reads
        assert group.first_needed(computed) == read // 2
        assert computed < group.next_release(group.first_needed(computed))
        assert group.first_needed(group.next_release(group.first_needed(computed))) == group.first_needed(computed) + 1


@pytest.mark.parametrize(("chunk", "size"), [(6, 2), (4, 4), (3, 4), (10, 4), (1, 2), (9, 2)])
def test_a_chunk_is_given_back_exactly_when_the_next_begins(chunk: int, size: int) -> None:
    """As soon as no query reads a block, and not before; blocks that two chunks share with the second."""
    group = ChunkedKind(size, chunk, 1)
    for computed in range(60):
        first = group.first_needed(computed)
        assert first == computed // chunk * chunk // size
        gone = group.next_release(first)
        assert gone > computed and group.first_needed(gone - 1) == first < group.first_needed(gone)


def test_request_holds_no_more_than_the_peak_says() -> None:
    for window, size, piece, depth in ((3, 2, 1, 1), (4, 4, 5, 2), (1, 2, 3, 2), (7, 1, 2, 1)):
        for kind in (SlidingKind, ChunkedKind):
            group = kind(size, window, piece * depth)
            for confirmed in range(40):
                end = confirmed + piece * depth
                assert -(-end // size) - group.first_needed(confirmed) <= group.peak_blocks(end, source_len=0)


@pytest.mark.parametrize(("chunk", "size", "in_flight"), [(6, 2, 1), (4, 4, 8), (3, 4, 5), (10, 4, 3), (6, 4, 2)])
def test_the_peak_of_chunks_is_reached(chunk: int, size: int, in_flight: int) -> None:
    """Admission reserves no block that is never held."""
    group = ChunkedKind(size, chunk, in_flight)
    held = [-(-(done + in_flight) // size) - group.first_needed(done) for done in range(100)]
    assert max(held) == group.peak_blocks(1000, source_len=0)


def test_a_prefix_hit_takes_only_the_chunk_it_ends_in() -> None:
    manager = KVManager(make_layout((0, chunks_of(6)), 2), 40, caching=True, in_flight_tokens=8)
    first, tokens = manager.new_tables(""), list(range(17))
    manager.begin(first, manager.find_prefix(first, tokens, read=True), 17)
    manager.register(first, tokens, 0, 8)
    manager.release_outside(first, 16)
    assert first.firsts == [0, 6]
    second = manager.new_tables("")
    hit = manager.find_prefix(second, tokens, read=True)
    assert hit.num_blocks == 8 and ids(hit.tables[1]) == [0] * 6 + ids(first.tables[1][6:8])
    at_the_end = manager.find_prefix(manager.new_tables(""), tokens[:13], read=True)
    assert at_the_end.num_blocks == 6 and ids(at_the_end.tables[1]) == [0] * 6, (
        "a chunk begins: nothing of it is needed"
    )


def test_fits_counts_cached_blocks_that_nobody_uses_as_free_only_once() -> None:
    manager = KVManager(make_layout((0,), 2), 6, caching=True, in_flight_tokens=8)  # 5 blocks
    first = manager.new_tables("")
    tokens = list(range(8))
    manager.begin(first, manager.find_prefix(first, tokens, read=True), 8)
    manager.register(first, tokens, 0, 4)
    manager.release(first)
    hit = manager.find_prefix(first, [*tokens, 8], read=True)
    assert (hit.num_blocks, manager.num_free) == (4, 5)
    assert manager.fits(hit, 10)
    assert not manager.fits(hit, 11)


def test_ends_of_prefixes_are_evicted_before_their_beginnings() -> None:
    manager = KVManager(make_layout((0,), 2), 5, caching=True, in_flight_tokens=8)
    first = manager.new_tables("")
    tokens = list(range(8))
    manager.begin(first, manager.find_prefix(first, tokens, read=True), 8)
    manager.register(first, tokens, 0, 4)
    manager.release(first)
    other = manager.new_tables("other")
    manager.begin(other, manager.find_prefix(other, [1, 2, 3], read=True), 3)
    assert manager.find_prefix(first, [*tokens, 8], read=True).num_blocks == 2


def test_blocks_from_bytes() -> None:
    layout = make_layout((0, 0, 8), 16)  # one slot: 2 * 16 tokens * 1 head * 1 element
    assert layout.block_bytes == 64


@pytest.mark.parametrize("windows", [(0,), (0, 8), (8,), (0, 4, 9), (0, chunks_of(8)), (4, chunks_of(9))])
def test_longest_request_that_fits(windows: tuple[int, ...]) -> None:
    layout = make_layout(windows, 4)
    for num_blocks in range(1, 60):
        fits = max_len_that_fits(layout, num_blocks, 6, 100)
        assert fits == 0 or blocks_needed(layout, fits, 6) <= num_blocks
        assert fits == 100 or blocks_needed(layout, fits + 1, 6) > num_blocks


def test_too_small_a_pool_is_refused_with_the_remedy() -> None:
    layout = make_layout((0,), 4)
    check_pool(layout, 26, 8, 100)
    with pytest.raises(ConfigError, match=r"max_model_len=100 .* num_blocks=25.* at most 96.*kv_cache_memory_bytes"):
        check_pool(layout, 25, 8, 100)
