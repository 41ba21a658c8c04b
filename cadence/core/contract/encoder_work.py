"""What an encoder has to compute before a plan's first forward."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.adapter import NO_SLOT
from cadence.core.contract.step import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """One content. It names blocks and not rows: several rows may read what is written there."""

    token_ids_np: IntArray  # [length], of text; [0] of audio
    features_np: FloatArray  # [mels, frames], of audio; [0, 0] of text
    length: int  # positions of the encoder's output
    block_ids: tuple[list[int], ...]  # per KV group, for `length` positions; empty for those without cross attention
    adapter: int = NO_SLOT  # slot of the adapter that its requests have
