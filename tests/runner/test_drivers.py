"""Who is asked for the next forward of a launch: the device itself, in turns, or nobody, since work is queued."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadence.device.cpu import CpuDevice
from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.runner.buffers import StepBuffers
from cadence.runner.driver import RunShape
from cadence.runner.drivers.choose import driver_of
from cadence.runner.drivers.queued import QueuedDriver
from cadence.runner.drivers.turns import TurnsDriver
from cadence.runner.layout import decode_layout
from cadence.runner.shapes import ExactShapes, StepShape, Until, shape_of
from cadence.runner.state.requests import RequestRows
from tests.helpers.drafted_chains import QueueingCpu

pytestmark = pytest.mark.device

ROWS_NP = np.array([0, 1], dtype=np.int32)
SHAPES = ExactShapes(2, 8, recorded=False, width=3)
SHAPE = shape_of(decode_layout(ROWS_NP, 1), Until.TOKENS)


def requests_of(num_drafts: list[int]) -> RequestRows:
    """Two rows that run, and the one that padding names."""
    requests = RequestRows(CpuDevice(), 3, 32)
    requests.flush()
    requests.state.quiet[:2] = 0
    requests.state.num_drafts[:2] = torch.tensor(num_drafts, dtype=torch.int32)
    return requests


def turns_of(requests: RequestRows) -> TurnsDriver:
    driver = driver_of(CpuDevice(), ReferenceRowOps(), requests, SHAPES)
    assert isinstance(driver, TurnsDriver)
    return driver


def recorded(driver: TurnsDriver, requests: RequestRows, ends_at: int = 0) -> RunShape:
    """A forward that starts over as long as it is told to; it commits 10, 11, … and row 0 ends at number `ends_at`."""
    buffers = StepBuffers(CpuDevice(), SHAPES, num_groups=1, quiet_row=2)
    batch, out = buffers.named(decode_layout(ROWS_NP, 1), SHAPE), driver.tokens[0, :2]

    def run(shape: StepShape) -> None:
        for forward in range(100):
            out.fill_(10 + forward)
            requests.state.quiet[0] = int(forward + 1 == ends_at)
            driver.end_forward(batch, out)
            if not driver._turns.control[0]:
                return

    return run


def test_a_decode_takes_turns_until_as_many_are_done_as_may_come_back_at_once() -> None:
    requests = requests_of([0, 0])
    driver = turns_of(requests)
    assert driver.run(SHAPE, 5, 0, recorded(driver, requests)) == 5
    assert driver.log[:6, 0].tolist() == [10, 11, 12, 13, 14, 0]
    assert driver.goes_on(ROWS_NP, 0)


def test_turns_end_with_a_row() -> None:
    requests = requests_of([0, 0])
    driver = turns_of(requests)
    assert driver.run(SHAPE, 5, driver.num_quiet(ROWS_NP), recorded(driver, requests, ends_at=3)) == 3
    assert not driver.goes_on(ROWS_NP, 0)
    assert driver.num_quiet(ROWS_NP) == 1
    assert driver.goes_on(ROWS_NP, 1), "one that had ended before"


def test_turns_end_with_drafts_which_have_room_in_the_next_run() -> None:
    requests = requests_of([0, 2])
    driver = turns_of(requests)
    assert driver.run(SHAPE, 5, 0, recorded(driver, requests)) == 1
    assert driver.goes_on(ROWS_NP, 0)
    trimmed = driver.trim_missing_drafts(decode_layout(ROWS_NP, 3))
    assert trimmed.line_counts_np.tolist() == [1, 3]


def test_a_device_that_queues_work_is_asked_for_one_shape_and_not_looked_at() -> None:
    requests = requests_of([0, 0])
    driver = driver_of(QueueingCpu(), ReferenceRowOps(), requests, SHAPES)
    assert isinstance(driver, QueuedDriver)
    ran: list[StepShape] = []
    assert driver.run(SHAPE, 5, 0, ran.append) == 1 and ran == [SHAPE]
    assert driver.log is driver.tokens
    assert not driver.goes_on(ROWS_NP, driver.num_quiet(ROWS_NP))
    layout = decode_layout(ROWS_NP, 3)
    assert driver.trim_missing_drafts(layout) is layout
