"""The hash chain of the prefix cache: each block's digest covers all tokens before it, and at the root the salt and
the adapter."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256

from cadence.scheduler.kv.kinds.block import RequestBlocks


@lru_cache(maxsize=16)  # most requests have the same
def root_digest(salt: str, adapter: str = "") -> bytes:
    """Parent of a request's first block: requests with different salts, or adapters of different digests, share
    nothing."""
    if adapter:
        return sha256(b"cadence/kv+adapter/" + sha256(adapter.encode()).digest() + salt.encode()).digest()
    return sha256(b"cadence/kv/" + salt.encode()).digest()


def source_digests(root: bytes, count: int) -> list[bytes]:
    """Of the blocks of a source, whose content is part of the root. They are looked up in groups of their own."""
    return [sha256(root + b"/source/" + number.to_bytes(4, "little")).digest() for number in range(count)]


def extend_hashes(blocks: RequestBlocks, tokens: list[int], block_size: int, count: int) -> None:
    """Computes the chain up to `count` blocks. Every token of those blocks is known."""
    hashes = blocks.hashes
    done = len(hashes)
    if done >= count:
        return
    parent = hashes[-1] if hashes else blocks.root
    hashes.extend(chained(parent, tokens[done * block_size : count * block_size], block_size))


def chained(parent: bytes, tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """The digest of each block after `parent`. `tokens` are those of whole blocks."""
    tokens_array = array("i", tokens)
    data, stride = tokens_array.tobytes(), block_size * tokens_array.itemsize
    for start in range(0, len(data), stride):
        parent = sha256(parent + data[start : start + stride]).digest()
        yield parent
