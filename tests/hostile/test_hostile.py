"""Nothing a stranger sends hurts anybody: generated requests of every kind in `make test`, 1,800 in `make wide`, and as
many as asked for elsewhere.

pytest tests/hostile --hostile-requests 20000 [--hostile-seed 7]
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.hostile.bounds import Bounds
from tests.hostile.campaign import Campaign, Pace
from tests.hostile.cases import Cases
from tests.hostile.health import Target
from tests.hostile.known_faults import ALL, HEAVY, known_case
from tests.hostile.report import KNOWN, Report
from tests.hostile.sample import sample
from tests.hostile.setup import invalid_seeds, make_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]  # not warm: what a forked process holds cannot be told


def test_generated_requests(target: Target, bounds: Bounds, request: pytest.FixtureRequest) -> None:
    seed, count = request.config.getoption("--hostile-seed"), request.config.getoption("--hostile-requests")
    assert not invalid_seeds(target)
    cases = make_cases(target, seed)
    attack(target, bounds, cases, range(count) if count else sample(cases))


@pytest.mark.wide
def test_many_generated_requests(target: Target, bounds: Bounds, request: pytest.FixtureRequest) -> None:
    cases = make_cases(target, request.config.getoption("--hostile-seed"))
    attack(target, bounds, cases, range(cases.one_turn))


def attack(target: Target, bounds: Bounds, cases: Cases, numbers: Sequence[int]) -> None:
    with Campaign(target, bounds, Report(cases.seed)) as campaign:
        report = campaign.run(cases.case, numbers)
    print(report)
    assert not report.findings, str(report)
    assert report.num_requests == len(numbers)
    assert report.statuses[200] > len(numbers) // 10 and report.statuses[400] > len(numbers) // 10


@pytest.mark.parametrize("heavy", [False, pytest.param(True, marks=pytest.mark.wide)], ids=["quick", "heavy"])
def test_known_faults_stay_fixed(target: Target, bounds: Bounds, heavy: bool) -> None:
    """One at a time, the server looked at after every few."""
    numbers = [number for number, fault in enumerate(ALL) if (fault[0] in HEAVY) == heavy]
    with Campaign(target, bounds, Report(KNOWN), Pace(batch=5, connections=1, max_findings=len(ALL))) as campaign:
        report = campaign.run(known_case, numbers)
    assert not report.findings, str(report)
    assert report.num_requests == len(numbers)
