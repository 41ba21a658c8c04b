"""Drafts that were verified and kept while something was measured, under the names that scripts for vLLM's benchmark
read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cadence.core.draft_stats import NO_DRAFTS, DraftStats
from cadence.core.outputs import RequestOutput
from cadence.entrypoints.cli.shared.report import Measure

_SAMPLE = re.compile(r"^vllm:spec_decode_(\w+?)_total(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True)
class DraftCounts:
    num_forwards: int  # that verified drafts
    num_drafted: int
    num_accepted: int
    accepted_by_position: tuple[int, ...]

    @classmethod
    def of(cls, stats: DraftStats) -> DraftCounts:
        return cls(stats.num_forwards, stats.num_drafted, stats.num_accepted, stats.accepted_by_position)

    @classmethod
    def of_outputs(cls, outputs: Iterable[RequestOutput]) -> DraftCounts:
        total = NO_DRAFTS
        for output in outputs:
            total = total.plus(output.speculation)
        return cls.of(total)

    @classmethod
    def of_metrics(cls, text: str) -> DraftCounts | None:
        """From Prometheus' text, all engines together; None where the server tells nothing of drafts."""
        sums: defaultdict[str, int] = defaultdict(int)
        positions: defaultdict[int, int] = defaultdict(int)
        for name, labels, value in _SAMPLE.findall(text):
            sums[name] += int(float(value))
            if found := _POSITION.search(labels):
                positions[int(found[1])] += int(float(value))
        if not sums:
            return None
        return cls(
            num_forwards=sums["num_drafts"],
            num_drafted=sums["num_draft_tokens"],
            num_accepted=sums["num_accepted_tokens"],
            accepted_by_position=tuple(positions[place] for place in sorted(positions)),
        )

    def minus(self, before: DraftCounts) -> DraftCounts:
        known = [*before.accepted_by_position, *[0] * len(self.accepted_by_position)]
        return DraftCounts(
            self.num_forwards - before.num_forwards,
            self.num_drafted - before.num_drafted,
            self.num_accepted - before.num_accepted,
            tuple(now - old for now, old in zip(self.accepted_by_position, known)),
        )

    def numbers(self) -> dict[str, Any]:
        """{} where no drafts were verified. The first rate is in percent, the others are shares of the forwards."""
        if not self.num_forwards:
            return {}
        return {
            "spec_decode_acceptance_rate": 100 * self.num_accepted / max(self.num_drafted, 1),
            "spec_decode_acceptance_length": 1 + self.num_accepted / self.num_forwards,
            "spec_decode_num_drafts": self.num_forwards,
            "spec_decode_draft_tokens": self.num_drafted,
            "spec_decode_accepted_tokens": self.num_accepted,
            "spec_decode_per_position_acceptance_rates": [
                count / self.num_forwards for count in self.accepted_by_position
            ],
        }


def draft_rows(numbers: dict[str, Any]) -> list[Measure]:
    """Lines of a table; none where nothing speculated."""
    if "spec_decode_acceptance_rate" not in numbers:
        return []
    return [
        Measure("drafts accepted", numbers["spec_decode_acceptance_rate"], "%"),
        Measure("mean accepted length", numbers["spec_decode_acceptance_length"], "tokens"),
    ]
