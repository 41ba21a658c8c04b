"""Nothing a stranger sends hurts anybody: 1,500 generated requests in CI, as many as asked for elsewhere.

pytest tests/hostile --hostile-requests 20000 [--hostile-seed 7]
"""

from __future__ import annotations

import pytest

from tests.hostile.bounds import Bounds
from tests.hostile.campaign import Campaign, Pace
from tests.hostile.health import Target
from tests.hostile.known_faults import ALL, known_case
from tests.hostile.report import KNOWN, Report
from tests.hostile.setup import invalid_seeds, make_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def test_generated_requests(target: Target, bounds: Bounds, request: pytest.FixtureRequest) -> None:
    seed, count = request.config.getoption("--hostile-seed"), request.config.getoption("--hostile-requests")
    assert not invalid_seeds(target)
    cases = make_cases(target, seed)
    with Campaign(target, bounds, Report(seed)) as campaign:
        report = campaign.run(cases.case, range(count))
    print(report)
    assert not report.findings, str(report)
    assert report.num_requests == count
    assert report.statuses[200] > count // 10 and report.statuses[400] > count // 10


def test_known_faults_stay_mended(target: Target, bounds: Bounds) -> None:
    """One at a time, the server looked at after each."""
    with Campaign(target, bounds, Report(KNOWN), Pace(batch=1, connections=1, max_findings=len(ALL))) as campaign:
        report = campaign.run(known_case, range(len(ALL)))
    assert not report.findings, str(report)
    assert report.num_requests == len(ALL)
