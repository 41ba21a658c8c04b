"""A verb of `control.py` on its way: from a front to an engine process, from an engine to its ranks, and back."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import (
    AdapterError,
    CadenceError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
    WeightsError,
)

_WITH_FIELD = {kind.__name__: kind for kind in (ConfigError, ModelFileError, InvalidRequestError)}
_PLAIN = {kind.__name__: kind for kind in (AdapterError, EngineDeadError, ModelNotFoundError, WeightsError)}


@dataclass(frozen=True, slots=True)
class ErrorText:
    kind: str  # name of its class
    message: str
    field: str = ""

    @classmethod
    def of(cls, error: Exception) -> ErrorText:
        return cls(type(error).__name__, str(error), getattr(error, "field", ""))

    def error(self) -> CadenceError:
        """Of the same class, where it is one of ours that users meet."""
        if self.kind in _WITH_FIELD:
            return _WITH_FIELD[self.kind](self.message, self.field)
        if self.kind in _PLAIN:
            return _PLAIN[self.kind](self.message)
        return EngineDeadError(f"{self.kind}: {self.message}")


@dataclass(frozen=True, slots=True)
class ControlCall:
    """Its payload is bytes of its own: one that cannot be decoded fails alone, not with the message it came in."""

    verb: str  # name
    payload: bytes  # of the type that the verb's line names
    call_id: int = 0  # ranks answer in the order of their calls, and need none


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    call_id: int
    payload: bytes = b""  # of the type that the verb's line names
    failure: ErrorText | None = None  # in its place
