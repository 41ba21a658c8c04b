"""What each feature puts into messages, as types: one line for each feature.

A feature has two halves, one beside the scheduler and one beside the runner. What they say to each other travels in
plans, mail and results under the feature's name; the codec reads it again by this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadence.core.adapter import ADAPTERS, AdapterSpec
from cadence.core.attachments import Attachment


@dataclass(frozen=True, slots=True)
class FeatureTypes:
    """None = nothing of the kind."""

    attachment: type[Attachment] | None = None  # of a request
    row: Any = None  # said of a row that begins
    step: Any = None  # sent with a plan


FEATURES: dict[str, FeatureTypes] = {
    ADAPTERS: FeatureTypes(
        attachment=AdapterSpec,
        row=int,  # the slot of its adapter
        step=list[tuple[int, str]],  # (slot, digest of what lies there from now on)
    ),
}
