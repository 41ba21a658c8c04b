"""Adapters in host memory, ready to be put into slots of a model. They are read beside forwards, in a thread."""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cadence.core.adapter import AdapterOutcome
from cadence.core.errors import AdapterError
from cadence.lora.adapter import open_adapter
from cadence.lora.fit import PreparedAdapter
from cadence.lora.model import LoraModel

_logger = logging.getLogger(__name__)


class AdapterStore:
    """Keeps what it is told to keep: which ones, and how many, is decided by the engine."""

    def __init__(self, model: LoraModel, elsewhere: Collection[str] = ()) -> None:
        """elsewhere: names of modules that other stages adapt"""
        self._model = model
        self._elsewhere = elsewhere
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._reading: dict[str, Future[PreparedAdapter]] = {}  # by path
        self._kept: dict[str, PreparedAdapter] = {}  # by digest

    def prepare(self, path: str) -> None:
        """Begins to read an adapter, and returns at once."""
        if path not in self._reading:
            self._reading[path] = self._pool.submit(self._read, path)

    def prepared(self) -> list[AdapterOutcome]:
        """Those that were read since the last call."""
        done = [path for path, job in self._reading.items() if job.done()]
        return [self._outcome(path, self._reading.pop(path)) for path in done]

    def forget(self, digest: str) -> None:
        self._kept.pop(digest, None)

    def put(self, slot: int, digest: str) -> bool:
        """Between forwards. -> whether forwards with adapters that were recorded before are outdated"""
        return self._model.put(slot, self._kept[digest])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._kept.clear()

    def _read(self, path: str) -> PreparedAdapter:
        return self._model.prepare(open_adapter(Path(path), self._model.limits), self._elsewhere)

    def _outcome(self, path: str, job: Future[PreparedAdapter]) -> AdapterOutcome:
        error = job.exception()
        if error is None:
            prepared = job.result()
            self._kept[prepared.digest] = prepared
            return AdapterOutcome(path, prepared.digest, "")
        if isinstance(error, AdapterError):
            return AdapterOutcome(path, "", str(error))
        _logger.error("an adapter could not be read", exc_info=error)
        return AdapterOutcome(path, "", f"the adapter could not be read: {type(error).__name__}")
