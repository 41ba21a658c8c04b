"""`prompt_embeds` over HTTP: a matrix in a format that holds numbers and nothing else, as base64."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError

_NUMPY, _TORCH = b"\x93NUMPY", b"PK\x03\x04"
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # of safetensors, bfloat16 as its bits
_MOST_HEADER = 10_000  # bytes


@dataclass(frozen=True, slots=True)
class PromptVectors:
    values_np: npt.NDArray[np.float32]  # [tokens, hidden]


def read_vectors(text: Any, name: str) -> PromptVectors:
    """A file of numpy (.npy), or of safetensors with one tensor. name: the field's"""
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name} must be base64 of a .npy or safetensors file", name)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{name} is not base64", name) from None
    if data.startswith(_TORCH):
        message = f"{name}: files of torch.save hold pickles, which are not read; send a .npy or safetensors file"
        raise InvalidRequestError(message, name)
    try:
        values_np = _numpy(data) if data.startswith(_NUMPY) else _safetensors(data)
    except (ValueError, KeyError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError):
        raise InvalidRequestError(f"{name} is no whole .npy or safetensors file of one matrix", name) from None
    return PromptVectors(values_np)


def _numpy(data: bytes) -> npt.NDArray[np.float32]:
    file = BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, by_columns, dtype = read(file, max_header_size=_MOST_HEADER)
    if by_columns or dtype.kind != "f" or dtype.hasobject:
        raise ValueError
    return _matrix(data[file.tell() :], dtype.str, shape)


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
    return _matrix(body, _FLOATS[tensor["dtype"]], tensor["shape"])


def _matrix(data: bytes, dtype: str, shape: Any) -> npt.NDArray[np.float32]:
    """shape: must be what the data has"""
    sizes = [int(size) for size in shape]
    if len(sizes) != 2 or min(sizes) < 1 or prod(sizes) * np.dtype(dtype).itemsize != len(data):
        raise ValueError
    flat_np = np.frombuffer(data, dtype=dtype)
    if dtype == _FLOATS["BF16"]:
        flat_np = (flat_np.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what does not fit is infinite, and refused as such
        return flat_np.astype(np.float32).reshape(sizes)
