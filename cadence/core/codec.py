"""Messages as bytes: msgpack by msgspec, typed on both ends. No pickle: a peer can send data, never code."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from cadence.core.errors import InvalidRequestError
from cadence.core.messages import FromEngine, ToEngine


def _plain(value: object) -> object:
    """numpy arrays travel as (dtype, shape, bytes)."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.integer):
        return int(value)
    if callable(value):
        raise InvalidRequestError(
            "logits_processors are Python functions and cannot be sent to an engine in another process; use LLM",
            "logits_processors",
        )
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _rich(kind: Any, value: Any) -> Any:
    if kind is object:  # refused options, always at their neutral value
        return value
    dtype, shape, data = value
    return np.frombuffer(data, dtype=dtype).reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine, dec_hook=_rich)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine, dec_hook=_rich)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _ENCODER.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    return _TO_ENGINE.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    return _FROM_ENGINE.decode(data)
