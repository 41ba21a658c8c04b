"""What the compile process is asked and what it answers: msgpack behind a length of four bytes. No pickle."""

from __future__ import annotations

import socket

import msgspec

from cadence.core.grammar import GrammarSpec

LENGTH_BYTES = 4


class LoadVocabulary(msgspec.Struct, frozen=True, tag=True):
    """The first message: the tokens, and the limits of every job."""

    pieces: list[bytes]
    special: dict[int, bytes]
    stop_ids: list[int]
    seconds: float
    memory_bytes: int
    compiled_bytes: int
    step_seconds: float
    median_seconds: float
    at_once: int


class Compile(msgspec.Struct, frozen=True, tag=True):
    number: int
    spec: GrammarSpec
    tenant: str = ""


class CompilerReady(msgspec.Struct, frozen=True, tag=True):
    pass


class CompileResult(msgspec.Struct, frozen=True, tag=True):
    number: int
    backend: str
    data: str  # for the `read` of that backend


class CompileRefused(msgspec.Struct, frozen=True, tag=True):
    number: int
    message: str  # goes behind the name of the field


ToCompiler = LoadVocabulary | Compile
FromCompiler = CompilerReady | CompileResult | CompileRefused

to_compiler = msgspec.msgpack.Decoder(ToCompiler)
from_compiler = msgspec.msgpack.Decoder(FromCompiler)


def frame(message: ToCompiler | FromCompiler) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def receive(wire: socket.socket) -> bytearray:
    """One message; empty when the other side has closed."""
    length = _exactly(wire, LENGTH_BYTES)
    return _exactly(wire, int.from_bytes(length, "little")) if length else length


def _exactly(wire: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        received = wire.recv_into(rest)
        if not received:
            return bytearray()
        rest = rest[received:]
    return data
