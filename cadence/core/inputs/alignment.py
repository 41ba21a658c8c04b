"""Where the words of a given text lie in what an encoder has read, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cadence.core.inputs.attachments import Attachment

ALIGNMENT = "alignment"  # the feature's name


@dataclass(frozen=True, slots=True)
class AlignmentSpec(Attachment):
    """A request with one ends when its last token is computed, with values [tokens, positions] in place of tokens: how
    its tokens, from `first` on, look along the encoder's output."""

    first: int  # place of the first token that is asked about
    positions: int  # of the encoder's output, from the beginning
    heads: tuple[tuple[int, int], ...]  # (layer of the decoder, head), whose attention counts
    feature: str = ALIGNMENT

    lacking: ClassVar[str] = "word times need a model with an encoder"
    samples: ClassVar[bool] = False

    @property
    def reads_cache(self) -> bool:
        """A token found in the cache looks nowhere."""
        return False
