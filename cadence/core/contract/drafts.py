"""What the host half of speculation sends to its device half."""

from __future__ import annotations

from dataclasses import dataclass, field

DRAFTS = "drafts"  # the feature's name


@dataclass(frozen=True, slots=True)
class DraftChanges:
    """Of running rows, from a plan on."""

    most: list[tuple[int, int]] = field(default_factory=list)  # (row, most drafts of a forward)
    catch_up: list[tuple[int, int]] = field(default_factory=list)  # (row, tokens that a model which drafts may lack)
