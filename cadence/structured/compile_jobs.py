"""What the compile process is asked and what it answers: msgpack. No pickle."""

from __future__ import annotations

import msgspec

from cadence.core.grammar import GrammarSpec


class LoadVocabulary(msgspec.Struct, frozen=True, tag=True):
    """The first message: the tokens, and the limits of every job."""

    pieces: list[bytes]
    special: dict[int, bytes]
    stop_ids: list[int]
    seconds: float
    clock_seconds: float
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
    message: str  # follows the name of the field; "" where `again`
    again: bool = False  # it is the machine that was busy: another try may succeed


ToCompiler = LoadVocabulary | Compile
FromCompiler = CompilerReady | CompileResult | CompileRefused

to_compiler = msgspec.msgpack.Decoder(ToCompiler)
from_compiler = msgspec.msgpack.Decoder(FromCompiler)
