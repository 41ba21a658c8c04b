"""What a request brings for one feature beside its tokens and parameters: an adapter, a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class KeysSpan:
    """Tokens [start, end) of a prompt whose keys are made of something else than these tokens."""

    start: int
    end: int
    digest: str  # of what they are made of
    whole: bool = False  # they are computed in one piece: a cached prefix does not end among them


class Attachment:
    """Plain data that is journalled with its request, and travels with it. `core/contract/features.py` lists all types.

    A type is a dataclass whose field `feature` has its feature's name as the default: by that it is read again.
    """

    __slots__ = ()

    feature: str
    lacking: ClassVar[str]  # why an engine without the feature refuses the request
    samples: ClassVar[bool] = True  # the request gets tokens; else it ends when its last token is computed

    @property
    def keys_digest(self) -> str:
        """Of the content, where it changes the keys of the request's tokens: it enters the prefix hash. "" = it does
        not, or is not known yet."""
        return ""

    @property
    def keys_spans(self) -> Sequence[KeysSpan]:
        """In order of tokens. Blocks of tokens before the first are shared with requests that have none."""
        return ()

    @property
    def source_len(self) -> int:
        """Positions of it that the cross attention of the request's tokens looks at; 0 = none"""
        return 0

    @property
    def keys_name(self) -> str:
        """Tells contents that change keys apart before their digests are known: for a guess where keys may lie."""
        return self.keys_digest

    @property
    def reads_cache(self) -> bool:
        """Whether the request may go on from keys that another one has left in the prefix cache."""
        return True

    def resolved(self, digest: str) -> Attachment:
        """With the digest that an engine found its content to have."""
        return self
