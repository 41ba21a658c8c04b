"""With which tower a model that drafts sees the pictures of its target's prompts."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.interface.media import MediaTower
from cadence.models.layers.tower import NoTower

NO_TOWER = NoTower()
_LENGTH = 16  # vectors of a content that is looked at


def tower_for(width: int, own: MediaTower, target: DecoderLM) -> MediaTower | None:
    """width: entries of the proposer's vectors of tokens. Its own tower, where that takes what is prepared for the
    target's; without one the target's, where what that makes has its width; None: neither."""
    if own.reads:
        return own if _take_the_same(own, target.tower) else None
    return target.tower if width and width == target.width else None


def _take_the_same(one: MediaTower, other: MediaTower) -> bool:
    """Contents of the same sizes, of which as many vectors come."""
    if type(one) is not type(other) or one.reads != other.reads:
        return False
    ours, theirs = one.largest(_LENGTH), other.largest(_LENGTH)
    sizes = [(each.kind, each.values.shape, each.values.dtype, each.grid, each.length) for each in (ours, theirs)]
    return sizes[0] == sizes[1]
