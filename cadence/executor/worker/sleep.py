"""A device that gives its memory back for a while: keys, states and what encoders made are lost, weights are kept in
host memory or read again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch

from cadence.core.contract.sleep import KV_CACHE, WEIGHTS
from cadence.core.errors import InvalidRequestError
from cadence.device.base import Device
from cadence.device.driver import DriverError
from cadence.device.regions import LARGE, whole

Tensors = Callable[[], Sequence[torch.Tensor]]

REGIONS = {WEIGHTS: WEIGHTS, KV_CACHE: LARGE}  # by tag


class DeviceSleep:
    def __init__(self, device: Device, weights: Tensors, caches: Tensors, reload: Callable[[], None]) -> None:
        """weights: what a loader fills. caches: what requests that begin anew do not need. reload: fills weights
        again"""
        self._device = device
        self._weights = weights
        self._caches = caches
        self._reload = reload
        self._lost = False  # the weights

    def give_back(self, level: int) -> None:
        device, regions = self._device, self._device.regions
        if not regions.enabled:
            raise InvalidRequestError("start the engine with enable_sleep_mode: memory of this device cannot be taken "
                                      "from under addresses otherwise", "enable_sleep_mode")  # fmt: skip
        device.synchronize()
        self._lost = level > 1
        with _told():
            regions.give_back(REGIONS[WEIGHTS], self._weights() if self._lost else ())  # there may be no room for them
            regions.give_back(REGIONS[KV_CACHE], whole(self._caches()))
        regions.trim()

    def take_back(self, tag: str) -> None:
        """What is awake stays as it is."""
        with _told():
            self._device.regions.take_back(REGIONS[tag])
        if tag == WEIGHTS and self._lost:
            self._reload()
            self._lost = False
            self._device.regions.trim()  # of what reading took
        self._device.synchronize()


@contextmanager
def _told() -> Generator[None, None, None]:
    """Too little memory is no end of an engine: its caller hears of it."""
    try:
        yield
    except DriverError as error:
        raise InvalidRequestError(str(error)) from None
