"""Which runs of a step are long is said of the model's own forwards, and of no others."""

from __future__ import annotations

import numpy as np
import pytest

from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.attention_batch import LONG, LongRun
from cadence.runner.buffers import StepBuffers
from cadence.runner.layout import BatchLayout, decode_layout
from cadence.runner.profile import dummy_plan
from cadence.runner.shapes import PaddedShapes, Until, shape_of

pytestmark = pytest.mark.device


def layout_of(counts: list[int], before: int) -> BatchLayout:
    return BatchLayout.of(dummy_plan(8, counts, 1 << 16, 1, SamplingParams(), num_computed=before))


def test_of_a_plan() -> None:
    layout = layout_of([1, LONG - 1, LONG, 3 * LONG], 77)
    assert layout.long_runs() == (LongRun(2, LONG, LONG, 77), LongRun(3, 2 * LONG, 3 * LONG, 77))
    assert layout_of([1, LONG - 1], 77).long_runs() == ()
    assert decode_layout(np.arange(4, dtype=np.int32), 1).long_runs() == ()


def test_a_batch_names_what_it_was_told() -> None:
    """A model that drafts has computed other tokens than the layout says: nobody tells its buffers."""
    shapes = PaddedShapes((), 8, 1 << 15, 1)
    buffers = StepBuffers(CpuDevice(), shapes, 1, 8)
    layout = layout_of([1, LONG], 5)
    shape = shape_of(layout, Until.LOGITS)
    buffers.name(layout, shape, layout.long_runs())
    assert buffers.batch(shape).attention(()).long_runs == (LongRun(1, 1, LONG, 5),)
    assert buffers.named(layout, shape).long_runs == ()
