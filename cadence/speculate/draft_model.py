"""A model beside the target that drafts for it, and where its keys lie among the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.models.interface.encoder import EncoderDecoder
from cadence.models.interface.media import MediaTower
from cadence.models.interface.model import LayerCache
from cadence.models.interface.model_proposer import ModelProposer


@dataclass(frozen=True, slots=True)
class StatesOfToken:
    """What a proposer begins with of a token of the target's."""

    count: int
    hidden: int  # entries of each
    dtype: torch.dtype


NO_STATES = StatesOfToken(0, 0, torch.float32)


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Its attention layers are numbered after the target's: `plan_layout(target.kv_layers() + proposer.kv_layers())`.
    Layers of one window share block tables: the proposer's keys of a position lie in the block that holds the target's.
    """

    proposer: ModelProposer
    vocab_size: int  # ids that it knows
    first_layer: int  # of its layers among all; the target's come before
    max_len: int  # tokens: no position of max_len or more is drafted from
    states: StatesOfToken = NO_STATES
    readers: Sequence[EncoderDecoder] = ()  # itself, where it attends to what an encoder reads
    state_layers: Sequence[LayerState] = ()  # what it keeps of rows beside keys
    tower: MediaTower | None = None  # what shows it pictures, the target's or its own; None: it sees none

    @property
    def waits(self) -> bool:
        """Its keys are made of the target's states: while no drafts are asked for, these are kept instead."""
        return bool(self.proposer.ahead and self.kv_layers())

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Of the target, whose streams it begins with."""
        return tuple(self.proposer.aux_layers)

    def kv_layers(self) -> list[LayerKV]:
        return self.proposer.kv_layers()

    def caches(self, caches: Sequence[LayerCache]) -> Sequence[LayerCache]:
        """Of all layers -> the proposer's own."""
        return caches[self.first_layer :]


class NoDraftModel:
    """Drafts, if there are any, are looked up."""

    states = NO_STATES
    waits = False
    state_layers: Sequence[LayerState] = ()
    aux_layers: tuple[int, ...] = ()
    readers: Sequence[EncoderDecoder] = ()
    tower = None

    def kv_layers(self) -> list[LayerKV]:
        return []


NO_DRAFT_MODEL = NoDraftModel()
AnyDraftModel = DraftModel | NoDraftModel
