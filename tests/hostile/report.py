"""What a campaign found, and how each finding is seen again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.hostile.case import Case
from tests.hostile.large import SMALLEST
from tests.hostile.wire import Answer

KNOWN = -1
_SHOWN_CASES = 6


@dataclass(frozen=True)
class Finding:
    what: str
    cases: tuple[Case, ...]  # the one it was, or all that may have been it

    def signature(self) -> str:
        """Alike for findings that are likely one fault."""
        words = re.sub(r"\d+", "N", self.what)[:120]
        return f"{self._suspect()}: {words}"

    def _suspect(self) -> str:
        """Whom it is likely to be about: an endpoint, or the largest of those that may have stopped the others."""
        if len(self.cases) == 1 and len(self.cases[0].request.body) < SMALLEST:
            return " ".join(self.cases[0].name.split()[:2])
        if not self.cases or self.what.startswith("after a batch"):
            return ""
        return max(self.cases, key=lambda case: len(case.request.body)).name


@dataclass
class Report:
    seed: int  # of the generator; KNOWN where the cases are those of known_faults.py
    tell: Callable[[Finding], None] = lambda finding: None  # called with each finding that is like no other
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
        finding = Finding(what, tuple(cases))
        if finding.signature() not in {one.signature() for one in self.findings}:
            self.tell(finding)
        self.findings.append(finding)

    def note(self, answer: Answer) -> None:
        self.num_requests += 1
        self.statuses[answer.status] += 1
        self.slowest_s = max(self.slowest_s, answer.seconds)

    def distinct(self) -> list[Finding]:
        return list({finding.signature(): finding for finding in self.findings}.values())

    def summary(self) -> str:
        statuses = ", ".join(f"{status or 'none'}: {count}" for status, count in sorted(self.statuses.items()))
        memory = [f"{role} {self.start_mb.get(role, 0):.0f} -> {mb:.0f} MB" for role, mb in self.peak_mb.items()]
        return (
            f"seed {self.seed}: {self.num_requests} requests in {self.seconds:.0f} s; {statuses}\n"
            f"longest /livez {self.worst_livez_ms:.0f} ms, gap of a stream {self.worst_gap_ms:.0f} ms, "
            f"answer {self.slowest_s:.1f} s; memory {', '.join(memory) or 'not looked at'}\n"
            f"{len(self.findings)} findings, {len(self.distinct())} distinct"
        )

    def __str__(self) -> str:
        lines = [line for finding in self.distinct() for line in shown(finding, self.seed)]
        return "\n".join([self.summary(), *lines])


def shown(finding: Finding, seed: int) -> list[str]:
    """Lines that say what was found, by what, and how it is seen again."""
    return [f"- {finding.what}", *_shown_cases(finding.cases, seed)]


def _shown_cases(cases: Sequence[Case], seed: int) -> list[str]:
    largest = sorted(cases, key=lambda case: -len(case.request.body))[:_SHOWN_CASES]
    lines = [f"    {case}"[:400] for case in largest]
    if len(cases) > len(largest):
        lines.append(f"    … or one of {len(cases) - len(largest)} more")
    numbers = " ".join(str(case.number) for case in largest)
    which = "--known" if seed == KNOWN else f"--seed {seed}"
    return [*lines, f"    again: python -m tests.hostile.replay {which} {numbers}"]
