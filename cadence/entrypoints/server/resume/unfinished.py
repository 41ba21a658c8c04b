"""What travels from a process that is stuck to the one that goes on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cadence.engine.text.held_updates import StreamPosition


@dataclass(frozen=True, slots=True)
class UnfinishedAnswer:
    """A request and how much of its answer its client has."""

    content: bytes  # head and body of the request; b"" = there is none
    unsent: bytes  # of the answer: to be written as it is
    is_begun: bool  # the head of the answer was written
    closes: bool  # the connection ends with the answer
    names: dict[str, Any]  # as `request_ids.names`
    positions: list[StreamPosition | None]  # of its requests to the engine, in order; None = it has not begun


@dataclass(frozen=True, slots=True)
class HandedOver:
    descriptor: int  # of the connection, owned by what has this
    answer: UnfinishedAnswer


def encode(handed: Sequence[HandedOver]) -> bytes:
    return msgspec.msgpack.encode(handed)


def decode(data: bytes) -> list[HandedOver]:
    return msgspec.msgpack.decode(data, type=list[HandedOver])


def encode_answer(answer: UnfinishedAnswer) -> bytes:
    return msgspec.msgpack.encode(answer)


def decode_answer(data: bytes) -> UnfinishedAnswer:
    return msgspec.msgpack.decode(data, type=UnfinishedAnswer)


def write_file(data: bytes) -> int:
    """-> the descriptor of a file in memory, or of one without a name, which holds `data`"""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("cadence-unfinished")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with os.fdopen(os.dup(descriptor), "wb") as out:
        out.write(data)
    return descriptor


def read_file(descriptor: int) -> bytes:
    """All of it. It is closed."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
