"""What the host's half of speculation says to the device's."""

from __future__ import annotations

from dataclasses import dataclass, field

DRAFTS = "drafts"  # the feature's name


@dataclass(frozen=True, slots=True)
class DraftChanges:
    """Of running rows, from a plan on."""

    most: list[tuple[int, int]] = field(default_factory=list)  # (row, most drafts of a forward)
    catch_up: list[tuple[int, int]] = field(default_factory=list)  # (row, tokens that a model which drafts may lack)
