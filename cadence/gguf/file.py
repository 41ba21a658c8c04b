"""Reader of the GGUF container (versions 2 and 3, little-endian): metadata, and where each tensor lies.

Written here rather than taken from the `gguf` package because that one builds a numpy view per metadata element:
4.2 s for SmolLM2's 49k tokens and merges on a 2-core machine where this reader needs 0.06 s, and because the core
runs where only torch, numpy, safetensors, tokenizers and jinja2 are installed.

A file is untrusted input: every count and length is checked against the bytes that are left before it is believed.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from cadence.core.errors import WeightsError
from cadence.core.mapped_file import map_file, release


class GGMLType(NamedTuple):
    name: str
    block: int  # elements per block
    nbytes: int  # bytes per block


GGML_TYPES: dict[int, GGMLType] = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 18),
    3: GGMLType("Q4_1", 32, 20),
    6: GGMLType("Q5_0", 32, 22),
    7: GGMLType("Q5_1", 32, 24),
    8: GGMLType("Q8_0", 32, 34),
    10: GGMLType("Q2_K", 256, 84),
    11: GGMLType("Q3_K", 256, 110),
    12: GGMLType("Q4_K", 256, 144),
    13: GGMLType("Q5_K", 256, 176),
    14: GGMLType("Q6_K", 256, 210),
    16: GGMLType("IQ2_XXS", 256, 66),
    17: GGMLType("IQ2_XS", 256, 74),
    18: GGMLType("IQ3_XXS", 256, 98),
    19: GGMLType("IQ1_S", 256, 50),
    20: GGMLType("IQ4_NL", 32, 18),
    21: GGMLType("IQ3_S", 256, 110),
    22: GGMLType("IQ2_S", 256, 82),
    23: GGMLType("IQ4_XS", 256, 136),
    24: GGMLType("I8", 1, 1),
    25: GGMLType("I16", 1, 2),
    26: GGMLType("I32", 1, 4),
    27: GGMLType("I64", 1, 8),
    28: GGMLType("F64", 1, 8),
    29: GGMLType("IQ1_M", 256, 56),
    30: GGMLType("BF16", 1, 2),
    34: GGMLType("TQ1_0", 256, 54),
    35: GGMLType("TQ2_0", 256, 66),
    39: GGMLType("MXFP4", 32, 17),
    40: GGMLType("NVFP4", 64, 36),
}

_INTEGERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 10: "<u8", 11: "<i8"}
_SCALARS = _INTEGERS | {6: "<f4", 7: "|b1", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
ELSEWHERE = "cadence.tensors_elsewhere"  # a metadata entry: the file has no bytes of its tensors
_VOCABULARY = "tokenizer.ggml."  # what the keys of a tokenizer begin with
_MAX_DIMS = 4
_MIN_KV_BYTES = 8 + 4 + 1  # key length, type, shortest value
_MIN_INFO_BYTES = 8 + 4 + 8 + 4 + 8  # name length, rank, one dimension, type, offset


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    name: str
    shape: tuple[int, ...]  # row-major, as torch has it (the file lists dimensions the other way round)
    type: GGMLType
    offset: int  # bytes from the start of the file
    nbytes: int


class GGUFFile:
    """An open file. `metadata` holds scalars as Python values, numeric arrays as numpy, string arrays as lists."""

    def __init__(self, path: Path, *, with_vocabulary: bool = True) -> None:
        """with_vocabulary: without, the strings of a tokenizer are passed over, and not in `metadata`"""
        self.path = path
        self._bytes = map_file(path)
        cursor = _Cursor(path, self._bytes)
        tensor_count, kv_count = _header(cursor)
        self.metadata: dict[str, Any] = _metadata(cursor, kv_count, "" if with_vocabulary else _VOCABULARY)
        self._metadata_end = cursor.pos  # bytes
        self.tensors: dict[str, GGUFTensor] = _tensors(
            cursor, tensor_count, self._alignment(cursor), ELSEWHERE in self.metadata
        )
        self._infos_end = cursor.pos

    def data(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """[nbytes] view of the mapped file; copy-on-write, so nothing written to it reaches the disk."""
        if ELSEWHERE in self.metadata:
            message = f"{self.path}: its tensors lie in the files of ranks; load it with load_format=sharded_state"
            raise WeightsError(message, "load_format")
        return np.frombuffer(self._bytes, np.uint8, tensor.nbytes, tensor.offset)

    def header_with_flag(self, key: str) -> bytes:
        """All that comes before the tensors, with one more metadata entry, which is true."""
        entry = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IB", _BOOL, 1)
        sizes, (count,) = self._bytes[:16], struct.unpack_from("<Q", self._bytes, 16)
        metadata, infos = self._bytes[24 : self._metadata_end], self._bytes[self._metadata_end : self._infos_end]
        return sizes + struct.pack("<Q", count + 1) + metadata + entry + infos

    def release(self, tensor: GGUFTensor) -> None:
        """Its bytes are no longer wanted in memory."""
        release(self._bytes, tensor.offset, tensor.nbytes)

    def require(self, key: str) -> Any:
        if key not in self.metadata:
            raise WeightsError(f"{self.path}: metadata has no {key!r}")
        return self.metadata[key]

    def _alignment(self, cursor: _Cursor) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            cursor.fail(f"general.alignment is {alignment!r}")
        return alignment


class _Cursor:
    """Reads forward through the mapped file and never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.pos = 0
        self.size = len(data)

    def fail(self, what: str) -> NoReturn:
        raise WeightsError(f"{self.path}: corrupt or truncated GGUF file: {what}")

    def left(self) -> int:
        return self.size - self.pos

    def take(self, count: int, what: str) -> int:
        """Position of the next `count` bytes, and moves past them."""
        if count > self.left():
            self.fail(f"{what} at byte {self.pos} needs {count} bytes, {self.left()} are left")
        start = self.pos
        self.pos += count
        return start

    def u32(self, what: str) -> int:
        start = self.take(4, what)
        return int.from_bytes(self.data[start : start + 4], "little")

    def next_u32(self) -> int:
        """Not yet read; of fewer bytes where the file ends."""
        return int.from_bytes(self.data[self.pos : self.pos + 4], "little")

    def u64(self, what: str) -> int:
        start = self.take(8, what)
        return int.from_bytes(self.data[start : start + 8], "little")

    def count(self, what: str, least_bytes: int) -> int:
        """A u64 number of things that take at least `least_bytes` each."""
        count = self.u64(what)
        if count * least_bytes > self.left():
            self.fail(f"{what} is {count}, more than {self.left()} bytes can hold")
        return count

    def string(self, what: str) -> str:
        length = self.u64(f"length of {what}")
        start = self.take(length, what)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} at byte {start} is not UTF-8")

    def strings(self, what: str) -> list[str]:
        """An array of strings; the one loop that runs hundreds of thousands of times."""
        count = self.count(f"size of {what}", least_bytes=8)
        data, pos, size = self.data, self.pos, self.size
        length_at = struct.Struct("<Q").unpack_from
        out: list[str] = []
        try:
            for _ in range(count):
                start = pos + 8
                pos = start + length_at(data, pos)[0]
                out.append(data[start:pos].decode())
                if pos > size:
                    break
        except (struct.error, OverflowError, IndexError):
            pos = size + 1
        except UnicodeDecodeError:
            if pos <= size:
                self.fail(f"entry {len(out)} of {what} is not UTF-8")
        if pos > size:
            self.fail(f"entry {len(out)} of {what} runs past the end of the file")
        self.pos = pos
        return out

    def skip_strings(self, what: str) -> None:
        """Past an array of strings."""
        count = self.count(f"size of {what}", least_bytes=8)
        data, pos = self.data, self.pos
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                pos += 8 + length_at(data, pos)[0]
        except (struct.error, OverflowError):
            pos = self.size + 1
        if pos > self.size:
            self.fail(f"an entry of {what} runs past the end of the file")
        self.pos = pos

    def numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        dtype = np.dtype(_SCALARS[kind])
        start = self.take(count * dtype.itemsize, what)
        return np.frombuffer(self.data, dtype, count, start)


def _header(cursor: _Cursor) -> tuple[int, int]:
    """(number of tensors, number of metadata entries)."""
    if cursor.data[:4] != b"GGUF":
        raise WeightsError(f"{cursor.path}: not a GGUF file (it begins with {cursor.data[:4]!r})")
    cursor.take(4, "magic")
    version = cursor.u32("version")
    if version not in (2, 3):
        big_endian = version & 0xFFFF == 0 and version != 0
        reason = "is big-endian" if big_endian else f"has GGUF version {version}; versions 2 and 3 are read"
        raise WeightsError(f"{cursor.path}: {reason}")
    tensor_count = cursor.count("number of tensors", _MIN_INFO_BYTES)
    return tensor_count, cursor.count("number of metadata entries", _MIN_KV_BYTES)


def _metadata(cursor: _Cursor, count: int, skipped: str) -> dict[str, Any]:
    """skipped: arrays of strings are passed over where their keys begin with it; "" = none is"""
    metadata: dict[str, Any] = {}
    seen: set[str] = set()
    for index in range(count):
        key = cursor.string(f"name of metadata entry {index}")
        if key in seen:
            cursor.fail(f"metadata entry {key!r} appears twice")
        seen.add(key)
        kind = cursor.u32(f"type of {key!r}")
        if skipped and kind == _ARRAY and key.startswith(skipped) and cursor.next_u32() == _STRING:
            cursor.take(4, "element type")
            cursor.skip_strings(repr(key))
        else:
            metadata[key] = _value(cursor, kind, repr(key))
    return metadata


def _value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        element = cursor.u32(f"element type of {what}")
        if element == _STRING:
            return cursor.strings(what)
        if element not in _SCALARS:
            cursor.fail(f"{what} is an array of type {element}")
        return cursor.numbers(element, cursor.u64(f"size of {what}"), what)
    if kind not in _SCALARS:
        cursor.fail(f"{what} has unknown type {kind}")
    return cursor.numbers(kind, 1, what)[0].item()


def _tensors(cursor: _Cursor, count: int, alignment: int, elsewhere: bool) -> dict[str, GGUFTensor]:
    """elsewhere: their bytes are not in this file"""
    infos = [_tensor_info(cursor, index) for index in range(count)]
    data_start = -(-cursor.pos // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for info in infos:
        offset = data_start + info.offset
        if info.name in tensors:
            cursor.fail(f"tensor {info.name!r} appears twice")
        if info.offset % alignment:
            cursor.fail(f"tensor {info.name!r} lies at offset {info.offset}, not a multiple of {alignment}")
        if offset + info.nbytes > cursor.size and not elsewhere:
            cursor.fail(f"tensor {info.name!r} ends at byte {offset + info.nbytes}, the file has {cursor.size}")
        tensors[info.name] = GGUFTensor(info.name, info.shape, info.type, offset, info.nbytes)
    return tensors


def _tensor_info(cursor: _Cursor, index: int) -> GGUFTensor:
    """As the file has it: `offset` still counts from the start of the data section."""
    name = cursor.string(f"name of tensor {index}")
    rank = cursor.u32(f"rank of tensor {name!r}")
    if not 1 <= rank <= _MAX_DIMS:
        cursor.fail(f"tensor {name!r} has {rank} dimensions")
    shape = tuple(cursor.u64(f"shape of tensor {name!r}") for _ in range(rank))[::-1]
    type_id = cursor.u32(f"type of tensor {name!r}")
    offset = cursor.u64(f"offset of tensor {name!r}")
    if type_id not in GGML_TYPES:
        raise WeightsError(f"{cursor.path}: tensor {name!r} has unknown type {type_id}")
    kind = GGML_TYPES[type_id]
    if shape[-1] % kind.block:
        cursor.fail(f"tensor {name!r} of type {kind.name} has rows of {shape[-1]}, not a multiple of {kind.block}")
    elements = 1
    for size in shape:
        elements *= size
    return GGUFTensor(name, shape, kind, offset, elements // kind.block * kind.nbytes)
