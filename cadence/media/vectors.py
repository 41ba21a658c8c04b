"""`prompt_embeds` over HTTP: a matrix as a file in base64. No file is run: neither format has code, or its code is not.

| file | |
|---|---|
| `.npy` | numpy's, in lines |
| safetensors | with one tensor |
| of `torch.save` | with one dense tensor, as vLLM's clients write it: `torch_file.py` |
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zipfile
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.media import torch_file

_BEGINS = b"\x93NUMPY"
_NUMPY = re.compile(  # as numpy writes it
    rb"\x93NUMPY\x01\x00(?P<length>..)"
    rb"(?P<header>\{'descr': '(?P<dtype>[<>]f[248])', 'fortran_order': (?P<by_columns>False|True), "
    rb"'shape': \((?P<tokens>\d{1,9}), (?P<hidden>\d{1,9})\), \} *\n)",
    re.DOTALL,
)
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # of safetensors, bfloat16 as its bits
_MOST_HEADER = 10_000  # bytes
_BROKEN = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RuntimeError),
    *(EOFError, MemoryError, struct.error, zipfile.BadZipFile),
)  # what reading bytes as one of the formats may raise


@dataclass(frozen=True, slots=True)
class PromptVectors:
    values_np: npt.NDArray[np.float32]  # [tokens, hidden]

    def __len__(self) -> int:
        return len(self.values_np)


def read_vectors(text: str, name: str) -> PromptVectors:
    """name: the field's"""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{name} is not base64", name) from None
    try:
        return PromptVectors(_matrix(data))
    except _BROKEN:
        message = f"{name} must be a file of one matrix of floats, [tokens, hidden size]: .npy, safetensors, or one "
        raise InvalidRequestError(message + "dense tensor by torch.save", name) from None


def _matrix(data: bytes) -> npt.NDArray[np.float32]:
    if data.startswith(torch_file.SIGNATURE):
        stored = torch_file.read_torch_file(data)
        return _floats(stored.data, _FLOATS[stored.dtype], stored.shape)
    return _numpy(data) if data.startswith(_BEGINS) else _safetensors(data)


def _numpy(data: bytes) -> npt.NDArray[np.float32]:
    found = _NUMPY.match(data)
    if found is None:
        raise ValueError
    by_columns, sizes = found["by_columns"] == b"True", [int(found["tokens"]), int(found["hidden"])]
    if (by_columns and min(sizes) > 1) or int.from_bytes(found["length"], "little") != len(found["header"]):
        raise ValueError
    return _floats(data[found.end() :], found["dtype"].decode(), sizes)


def _safetensors(data: bytes) -> npt.NDArray[np.float32]:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(_MOST_HEADER, len(data) - 8):
        raise ValueError
    header = json.loads(data[8 : 8 + length])
    (tensor,) = [value for key, value in header.items() if key != "__metadata__"]
    start, end = tensor["data_offsets"]
    body = data[8 + length :]
    if (start, end) != (0, len(body)):
        raise ValueError
    return _floats(body, _FLOATS[tensor["dtype"]], tensor["shape"])


def _floats(data: bytes, dtype: str, shape: Any) -> npt.NDArray[np.float32]:
    """shape: must be what the data has"""
    sizes = [int(size) for size in shape]
    if len(sizes) != 2 or min(sizes) < 1 or prod(sizes) * np.dtype(dtype).itemsize != len(data):
        raise ValueError
    flat_np = np.frombuffer(data, dtype=dtype)
    if dtype == _FLOATS["BF16"]:
        flat_np = (flat_np.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what does not fit is infinite, and refused as such
        return flat_np.astype(np.float32).reshape(sizes)
