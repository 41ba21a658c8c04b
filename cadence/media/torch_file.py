"""A matrix out of a file of `torch.save`, as vLLM's clients send it. Its pickle is never run: its opcodes are compared,
one by one, with those that torch writes for one dense tensor of two axes, and whatever differs is refused."""

from __future__ import annotations

import pickletools
import zipfile
from io import BytesIO
from typing import Any, NamedTuple

SIGNATURE = b"PK\x03\x04"  # of a zip file
_ENTRY = b"PK\x01\x02"  # what the directory of a zip file has for each of its files
_MOST_ENTRIES = 64  # torch writes seven
_MOST_PICKLE = 4096  # bytes; torch writes some 200
_TYPES = {"FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16"}
_NOTES = frozenset({"PROTO", "BINPUT", "LONG_BINPUT", "MEMOIZE", "FRAME"})  # they add nothing to what is made
_INTEGERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
_TENSOR = (  # opcodes, and what each must say; None = it is read
    ("GLOBAL", "torch._utils _rebuild_tensor_v2"),
    *(("MARK", None), ("MARK", None), ("BINUNICODE", "storage")),
    *(("GLOBAL", None), ("BINUNICODE", None), ("BINUNICODE", None), ("INTEGER", None)),  # type, file, device, entries
    *(("TUPLE", None), ("BINPERSID", None)),
    *(("INTEGER", None), ("INTEGER", None), ("INTEGER", None), ("TUPLE2", None)),  # where it begins, its shape
    *(("INTEGER", None), ("INTEGER", None), ("TUPLE2", None)),  # entries between two lines, and between two columns
    *(("BOOL", None), ("GLOBAL", "collections OrderedDict"), ("EMPTY_TUPLE", None), ("REDUCE", None)),  # no hooks
    *(("TUPLE", None), ("REDUCE", None), ("STOP", None)),
)


class TorchMatrix(NamedTuple):
    data: bytes
    dtype: str  # as safetensors names it
    shape: tuple[int, int]


def read_torch_file(data: bytes) -> TorchMatrix:
    """Raises ValueError, KeyError or BadZipFile where it is anything else."""
    if data.count(_ENTRY) > _MOST_ENTRIES:
        raise ValueError("more files than torch writes")
    with zipfile.ZipFile(BytesIO(data)) as archive:
        files = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in files.values()):
            raise ValueError("torch compresses nothing")
        if files["data.pkl"].file_size > _MOST_PICKLE:
            raise ValueError("more than one tensor")
        if "byteorder" in files and archive.read(files["byteorder"]) != b"little":
            raise ValueError("bytes in another order")
        kind, key, _, _, start, rows, columns, line, column = _said(archive.read(files["data.pkl"]))
        storage = archive.read(files[f"data/{key}"])
    if rows < 1 or columns < 1 or start < 0 or column != 1 or (rows > 1 and line != columns):
        raise ValueError("its lines do not follow each other")
    dtype = _TYPES[kind.removeprefix("torch ")]
    size = int(dtype.removeprefix("B")[1:]) // 8  # bytes of an entry
    return TorchMatrix(storage[start * size : (start + rows * columns) * size], dtype, (rows, columns))


def _said(pickled: bytes) -> list[Any]:
    """What the opcodes of a tensor say that is not the same for all."""
    found: list[Any] = []
    opcodes = ((_kind(opcode.name), said) for opcode, said, _ in pickletools.genops(pickled))
    expected = iter(_TENSOR)
    for name, said in opcodes:
        if name == "NOTE":
            continue
        wanted, value = next(expected, ("", None))
        if name != wanted or (value is not None and said != value):
            raise ValueError("no dense tensor of two axes")
        if value is None and said is not None:
            found.append(said)
    if next(expected, None) is not None:
        raise ValueError("it ends too early")
    return found


def _kind(name: str) -> str:
    if name in _NOTES:
        return "NOTE"
    if name in ("NEWTRUE", "NEWFALSE"):
        return "BOOL"
    return "INTEGER" if name in _INTEGERS else name
