"""Which driver a device gets."""

from __future__ import annotations

import torch

from cadence.device.base import Device
from cadence.kernels.interface.row_ops import RowOps
from cadence.runner.driver import ForwardDriver
from cadence.runner.drivers.queued import QueuedDriver
from cadence.runner.drivers.turns import TurnsDriver
from cadence.runner.shapes import Shapes
from cadence.runner.state.requests import RequestRows


def driver_of(device: Device, ops: RowOps, requests: RequestRows, shapes: Shapes) -> ForwardDriver:
    size = (shapes.most_forwards, shapes.most_lines)
    tokens = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
    return QueuedDriver(tokens) if device.queues_work else TurnsDriver(tokens, ops, requests, shapes)
