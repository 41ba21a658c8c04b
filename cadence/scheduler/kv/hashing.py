"""The hash chain of the prefix cache: each block's digest covers all tokens before it, what stands in the place of some
(pictures, sounds), and at the root the salt and the adapter."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256

from cadence.core.inputs.attachments import KeysSpan
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
    hashes.extend(chained(parent, tokens[done * block_size : count * block_size], block_size, blocks.spans, done))


def chained(
    parent: bytes, tokens: Sequence[int], block_size: int, spans: Sequence[KeysSpan] = (), first: int = 0
) -> Iterator[bytes]:
    """The digest of each block after `parent`. `tokens` are those of whole blocks, of which the first has the number
    `first`; spans: of the whole prompt"""
    tokens_array = array("i", tokens)
    data, stride = tokens_array.tobytes(), block_size * tokens_array.itemsize
    others = _spans_of_blocks(spans, block_size) if spans else {}
    for number, start in enumerate(range(0, len(data), stride), first):
        parent = sha256(parent + data[start : start + stride] + others.get(number, b"")).digest()
        yield parent


def _spans_of_blocks(spans: Sequence[KeysSpan], block_size: int) -> dict[int, bytes]:
    """By block: which parts of what stand in it."""
    found: dict[int, bytes] = {}
    for span in spans:
        content = sha256(span.digest.encode()).digest()
        for number in range(span.start // block_size, -(-span.end // block_size)):
            where = (number * block_size - span.start).to_bytes(8, "little", signed=True)
            found[number] = found.get(number, b"/span/") + content + where
    return found
