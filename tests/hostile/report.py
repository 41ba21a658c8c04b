"""What a campaign found, and how each finding is seen again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.hostile.case import Case
from tests.hostile.wire import Answer

_SHOWN_CASES = 6


@dataclass(frozen=True)
class Finding:
    what: str
    cases: tuple[Case, ...]  # the one it was, or all that may have been it

    def signature(self) -> str:
        """Alike for findings that are likely one fault."""
        words = re.sub(r"\d+", "N", self.what)[:120]
        endpoint = " ".join(self.cases[0].name.split()[:2]) if len(self.cases) == 1 else ""
        return f"{endpoint}: {words}"


@dataclass
class Report:
    seed: int
    findings: list[Finding] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    num_requests: int = 0
    seconds: float = 0.0
    worst_livez_ms: float = 0.0
    worst_gap_ms: float = 0.0
    slowest_s: float = 0.0
    start_mb: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, cases: Iterable[Case]) -> None:
        self.findings.append(Finding(what, tuple(cases)))

    def note(self, answer: Answer) -> None:
        self.num_requests += 1
        self.statuses[answer.status] += 1
        self.slowest_s = max(self.slowest_s, answer.seconds)

    def distinct(self) -> list[Finding]:
        return list({finding.signature(): finding for finding in self.findings}.values())

    def __str__(self) -> str:
        statuses = ", ".join(f"{status or 'none'}: {count}" for status, count in sorted(self.statuses.items()))
        memory = ", ".join(
            f"{role} {self.start_mb.get(role, 0):.0f} -> {mb:.0f} MB" for role, mb in self.peak_mb.items()
        )
        lines = [
            f"seed {self.seed}: {self.num_requests} requests in {self.seconds:.0f} s; {statuses}",
            f"longest /livez {self.worst_livez_ms:.0f} ms, gap of a stream {self.worst_gap_ms:.0f} ms, "
            f"answer {self.slowest_s:.1f} s; memory {memory or 'not looked at'}",
        ]
        distinct = self.distinct()
        lines.append(f"{len(self.findings)} findings, {len(distinct)} distinct")
        for finding in distinct:
            lines += [f"- {finding.what}", *_shown(finding.cases, self.seed)]
        return "\n".join(lines)


def _shown(cases: Sequence[Case], seed: int) -> list[str]:
    largest = sorted(cases, key=lambda case: -len(case.request.body))[:_SHOWN_CASES]
    lines = [f"    {case}"[:400] for case in largest]
    if len(cases) > len(largest):
        lines.append(f"    … or one of {len(cases) - len(largest)} more")
    numbers = " ".join(str(case.number) for case in largest)
    return [*lines, f"    again: python -m tests.hostile.replay --seed {seed} {numbers}"]
