"""Logits processors given as classes, as vLLM has them: written for a whole batch, or adapted from one request's.

Here every request has an object of its own, which sees a batch of that one request. Plain callables need none of this:
`sample/custom.py` says what they are given.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from cadence.core.contract.request import EngineRequest
from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

RequestLogitsProcessor = Callable[..., Any]  # f(output_ids, logits) or f(prompt_ids, output_ids, logits) -> logits [V]


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True, slots=True)
class BatchUpdate:
    """How a batch changed since the last step, by index."""

    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[tuple[int, SamplingParams, list[int] | None, list[int]]] = ()  # index, params, prompt, output ids
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class LogitsProcessor(ABC):
    """Works on the logits [batch, V] of all requests at once. `config` is the engine's, as far as it has one."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Raises ValueError for parameters this processor cannot work with."""
        return None

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """Subclasses keep what they need of these."""
        super().__init__()

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Before every step; None = the same requests as before."""


class AdapterLogitsProcessor(LogitsProcessor):
    """For processors of one request: `new_req_logits_processor` gives a request its own, or None."""

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None: ...

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """The requests' own processors have the state."""


@dataclass(slots=True)
class BatchOfOne:
    """One request's object of a batch-wide processor, as a plain callable."""

    processor: LogitsProcessor
    params: SamplingParams
    _output: list[int] | None = field(default=None)  # the list the processor was given; it grows in place

    def __call__(self, prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if self._output is None:
            self._output = list(output)
            self.processor.update_state(BatchUpdate(1, added=[(0, self.params, prompt, self._output)]))
        else:
            self._output[:] = output
            self.processor.update_state(None)
        return self.processor.apply(logits[None])[0]


_NOT_SENT = (
    "logits_processors are Python code and cannot be sent to workers in other processes; "
    "use distributed_executor_backend='uni'"
)


class ProcessorClasses:
    """The classes an engine was given, and the objects they make for requests."""

    def __init__(self, classes: Sequence[type[LogitsProcessor]], config: Any, device: str) -> None:
        self._classes = tuple(classes)
        self._in_process = not config.parallel.has_workers
        if classes and not self._in_process:
            raise ConfigError(_NOT_SENT, "logits_processors")
        self._made_with = (config, _torch_device(device) if classes else None, False)
        self._adapters = [kind(*self._made_with) for kind in classes if issubclass(kind, AdapterLogitsProcessor)]

    def check(self, params: SamplingParams) -> None:
        if params.logits_processors and not self._in_process:
            raise InvalidRequestError(_NOT_SENT, "logits_processors")
        for kind in self._classes:
            kind.validate_params(params)

    def give(self, request: EngineRequest) -> None:
        """Adds the request's own processors to its parameters."""
        if not self._classes:
            return
        params = request.params
        adapted = [adapter.new_req_logits_processor(params) for adapter in self._adapters]
        batched = [
            BatchOfOne(kind(*self._made_with), params)
            for kind in self._classes
            if not issubclass(kind, AdapterLogitsProcessor)
        ]
        own: list[Callable[..., Any]] = [*(function for function in adapted if function is not None), *batched]
        params.logits_processors = [*(params.logits_processors or ()), *own] or None

    def __bool__(self) -> bool:
        return bool(self._classes)


def split_processors(given: Sequence[Any]) -> tuple[list[type[LogitsProcessor]], list[Callable[..., Any]]]:
    """Classes and plain callables; a text `module:name` stands for what is found there."""
    found = [_imported(item) if isinstance(item, str) else item for item in given]
    classes = [item for item in found if isinstance(item, type) and issubclass(item, LogitsProcessor)]
    functions = [item for item in found if not (isinstance(item, type) and issubclass(item, LogitsProcessor))]
    for item in functions:
        if not callable(item) or isinstance(item, type):
            name = getattr(item, "__name__", repr(item))
            raise ConfigError(
                f"logits_processors: {name} is neither a callable nor a LogitsProcessor class", "logits_processors"
            )
    return classes, functions


def _torch_device(kind: str) -> torch.device:
    import torch

    return torch.device(kind)


def _imported(name: str) -> Any:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(f"logits_processors: there is no {name!r} to import", "logits_processors") from None


def process_dict_updates(
    entries: dict[int, Any],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], Any],
) -> bool:
    """Keeps `entries` (index -> state) in step with a batch -> whether they changed."""
    if batch_update is None:
        return False
    before = dict(entries)
    for index, params, prompt, output in batch_update.added:
        state = new_state(params, prompt, output)
        entries.pop(index, None)
        if state is not None:
            entries[index] = state
    for index in batch_update.removed:
        entries.pop(index, None)
    for source, target, direction in batch_update.moved:
        moved, replaced = entries.pop(source, None), entries.pop(target, None)
        if moved is not None:
            entries[target] = moved
        if replaced is not None and direction is MoveDirectionality.SWAP:
            entries[source] = replaced
    return entries != before
