"""What each feature puts into messages, as types: one line for each feature.

A feature has two halves, one beside the scheduler and one beside the runner. What they tell each other travels in
plans, mail and results under the feature's name; the codec decodes it by this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadence.core.adapter import ADAPTERS, AdapterSpec
from cadence.core.contract.drafts import DRAFTS, DraftChanges
from cadence.core.contract.encoder_work import EncoderWork
from cadence.core.contract.media_work import MediaStep, RopeRow
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.grammar import GRAMMAR, GrammarSpec
from cadence.core.inputs.alignment import ALIGNMENT, AlignmentSpec
from cadence.core.inputs.attachments import Attachment
from cadence.core.inputs.encoder_input import ENCODER, EncoderInput
from cadence.core.inputs.media import MEDIA, MediaInput
from cadence.core.model.state_spec import STATES
from cadence.core.pooled.pooling import POOLING, PoolingSpec


@dataclass(frozen=True, slots=True)
class FeatureTypes:
    """None = nothing of the kind."""

    attachment: type[Attachment] | None = None  # of a request
    row: Any = None  # said of a row that begins
    step: Any = None  # sent with a plan
    mail: Any = None  # what rows of a step wait for
    result: Any = None  # what comes back with a part of a step


FEATURES: dict[str, FeatureTypes] = {
    ADAPTERS: FeatureTypes(
        attachment=AdapterSpec,
        row=int,  # the slot of its adapter
        step=list[tuple[int, str]],  # (slot, digest of what lies there from now on)
    ),
    ALIGNMENT: FeatureTypes(
        attachment=AlignmentSpec,
        row=AlignmentSpec,
    ),
    DRAFTS: FeatureTypes(
        row=int,  # most drafts of its first forwards
        step=DraftChanges,
    ),
    ENCODER: FeatureTypes(
        attachment=EncoderInput,
        row=int,  # positions of its encoder's output
        step=list[EncoderWork],
    ),
    GRAMMAR: FeatureTypes(
        attachment=GrammarSpec,
        row=bool,  # True
        step=list[tuple[int, list[int]]],  # (row, tokens that must come next: its drafts, in place of any other)
        mail=TokenMasks,
        result=dict[int, list[int]],  # by row that waited: its drafts in the next forward
    ),
    MEDIA: FeatureTypes(
        attachment=MediaInput,
        row=RopeRow,
        step=MediaStep,
    ),
    POOLING: FeatureTypes(
        attachment=PoolingSpec,
        row=PoolingSpec,
    ),
    STATES: FeatureTypes(
        row=int,  # the snapshot that its state begins with
        step=list[tuple[int, int]],  # (row, slot) of states that are kept as they are before the step
    ),
}
