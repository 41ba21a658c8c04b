"""What a model with towers sees and hears of a prompt, as plain data: pictures, frames, sounds, vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.attachments import Attachment, KeysSpan

MEDIA = "media"  # the feature's name

IMAGE, VIDEO, AUDIO = "image", "video", "audio"  # kinds that towers read
VECTORS = "vectors"  # the kind whose values are what a tower would give: `prompt_embeds`

# A field of a configuration that was read from GGUF files: what preprocessor_config.json would say, and the `file`.
PROCESSOR_FIELD = "gguf_processor"

SEGMENT = 5  # entries of a rope segment
MOST_SEGMENTS = 1024  # of a prompt: a picture has one, a video one for each two frames, as has what lies between
_NO_SEGMENTS_NP: npt.NDArray[np.int32] = np.zeros((0, SEGMENT), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class MediaItem:
    """What takes the place of tokens [start, start + length) of a prompt: a tower makes `length` vectors of it."""

    kind: str
    start: int
    length: int
    values_np: npt.NDArray[Any] = field(compare=False)  # as the family's `prepare` leaves them; vectors: [length, H]
    grid: tuple[int, ...] = ()  # what the tower wants to know beside values: patches of a picture, each way
    both_ways: bool = False  # its tokens see each other, whatever their order
    digest: str = ""  # of kind, values and grid, as hexadecimal digits

    @classmethod
    def of(
        cls, kind: str, start: int, length: int, values_np: npt.NDArray[Any], grid: tuple[int, ...], both_ways: bool
    ) -> MediaItem:
        values_np = np.ascontiguousarray(values_np)
        digest = sha256(f"{kind}/{values_np.dtype.str}/{values_np.shape}/{grid}/{length}/".encode())
        digest.update(values_np.data)
        return cls(kind, start, length, values_np, grid, both_ways, digest.hexdigest())

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class MediaStats:
    """Contents that requests came to since the start."""

    queries: int = 0
    hits: int = 0  # of these, those that had been encoded before

    def plus(self, other: MediaStats) -> MediaStats:
        return MediaStats(self.queries + other.queries, self.hits + other.hits)


NO_MEDIA_STATS = MediaStats()


@dataclass(frozen=True, slots=True)
class MediaInput(Attachment):
    """All that a prompt has, in order of their tokens; none overlap.

    rope_segments: [n, SEGMENT] int32, (first token, t, h, w, width) in order of tokens, or [0, SEGMENT] of a model
    whose tokens are turned by one position each. Token `first + i` of a segment stands at (t, h + i // width,
    w + i % width), or, where width is 0, at (t + i, h + i, w + i); the last segment goes on for ever.
    """

    items: tuple[MediaItem, ...]
    rope_segments_np: npt.NDArray[np.int32] = field(default_factory=_NO_SEGMENTS_NP.copy, compare=False)
    feature: str = MEDIA

    lacking: ClassVar[str] = "this engine's model takes text alone: it has no tower that sees or hears"

    @property
    def has_vectors(self) -> bool:
        """In the place of all its tokens, whose ids are not known."""
        return any(item.kind == VECTORS for item in self.items)

    @property
    def keys_spans(self) -> Sequence[KeysSpan]:
        return [KeysSpan(item.start, item.end, item.digest, item.both_ways) for item in self.items]
