"""What programs take at a time. Where bits may not depend on the batch, neither do tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton

_MOST_ENTRIES = 8192  # of a state, in the registers of a program that has chunks beside it


@dataclass(frozen=True, slots=True)
class WalkTile:
    """What a program that walks has of a state, in its last dimension; all of the one before it."""

    block: int
    warps: int
    ahead: int = 1  # tokens that are loaded while as many before them are taken in

    def fit(self, size: int) -> WalkTile:
        return replace(self, block=min(self.block, triton.next_power_of_2(size)))


@dataclass(frozen=True, slots=True)
class HeadChunks:
    """Mamba-2 in chunks."""

    chunk: int  # tokens
    block: int  # entries of a head
    warps: int
    stages: int  # of bfloat16; others take twice the room, and have one
    programs: int  # that fill the device

    def fit(self, width: int, size: int) -> HeadChunks:
        """Of a block that fits a state [width, size]."""
        most = max(_MOST_ENTRIES // triton.next_power_of_2(width), 16)
        return replace(self, block=max(min(self.block, most, triton.next_power_of_2(size)), 16))


@dataclass(frozen=True, slots=True)
class DeltaChunks:
    """The delta rule in chunks."""

    chunk: int  # tokens: 16 or 64
    warps: int  # of the kernel that prepares chunks
    block: int  # values of a head, in the kernel that walks through them
    walk_warps: int
    stages: int  # of bfloat16

    def fit(self, size: int) -> DeltaChunks:
        return replace(self, block=max(min(self.block, triton.next_power_of_2(size)), 16))


@dataclass(frozen=True, slots=True)
class StateTiles:
    channels: WalkTile = WalkTile(32, 1, 4)
    prompt_channels: WalkTile = WalkTile(32, 1, 4)  # of longer runs, where bits may differ
    heads: WalkTile = WalkTile(32, 4)
    delta: WalkTile = WalkTile(32, 4)
    few_tokens: int = 16  # longest run that is walked through where it could be taken in chunks
    head_chunks: HeadChunks = HeadChunks(chunk=64, block=64, warps=4, stages=2, programs=264)
    delta_chunks: DeltaChunks = DeltaChunks(chunk=64, warps=4, block=64, walk_warps=4, stages=2)
