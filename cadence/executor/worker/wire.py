"""The messages of an executor as bytes: one byte for the kind, then what `core/contract/codec.py` writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cadence.core.contract.control_messages import ErrorText
from cadence.core.errors import CadenceError
from cadence.core.model.kv_spec import KVLayout
from cadence.distributed.mesh import Mesh
from cadence.executor.worker.worker_config import WorkerConfig

# To workers.
STEP, ADVANCE, POST, CALL, STOP = b"S", b"A", b"P", b"C", b"Q"
# From a worker. A failure ends it.
READY, RESULT, ANSWER, FAILURE = b"Y", b"R", b"N", b"F"

_ADVANCE = struct.Struct("<qqq")
_POST = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Seat:
    """What one worker is told before all others' messages."""

    mesh: Mesh
    num_threads: int  # of its kernels; 0 = as many as are worth having
    cpus: tuple[int, ...] = ()  # that it may run on; () = those of its parent
    gpu: int = 0  # its number
    num_sharers: int = 1  # ranks that use this GPU
    has_all: bool = False  # of every layer, whatever others have


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What only a worker can know of its model, and the engine must."""

    layout: KVLayout
    vocab_size: int


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _rich(kind: Any, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"{kind} cannot be read")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode_plain(value: Seat | ModelFacts | ErrorText | WorkerConfig) -> bytes:
    return _ENCODER.encode(value)


def decode_seat(data: bytes) -> Seat:
    return msgspec.msgpack.decode(data, type=Seat)


def decode_config(data: bytes) -> WorkerConfig:
    return msgspec.msgpack.decode(data, type=WorkerConfig, dec_hook=_rich)


def decode_ready(data: bytes) -> ModelFacts:
    return msgspec.msgpack.decode(data, type=ModelFacts)


def encode_advance(step_id: int, first: int, count: int) -> bytes:
    return ADVANCE + _ADVANCE.pack(step_id, first, count)


def decode_advance(data: bytes) -> tuple[int, int, int]:
    return _ADVANCE.unpack(data)


def encode_post(step_id: int, mail: bytes) -> bytes:
    return POST + _POST.pack(step_id) + mail


def decode_post(data: bytes) -> tuple[int, bytes]:
    return _POST.unpack_from(data)[0], data[_POST.size :]


def encode_error(error: Exception) -> bytes:
    return encode_plain(ErrorText.of(error))


def decode_error(data: bytes) -> CadenceError:
    return msgspec.msgpack.decode(data, type=ErrorText).error()
