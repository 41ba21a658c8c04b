"""Values as bytes: in fewer bits than float32 where a client asks for that, in the order of bytes that it wants."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError

FloatArray = npt.NDArray[np.float32]
EmbedDType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]

_MOST_METADATA = 32_768  # bytes of a header: many clients read no longer one


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A sign, an exponent and a mantissa in eight bits."""

    mantissa: int  # bits
    least_exponent: int  # of numbers whose mantissa has all its bits
    most: int  # bits of the largest number
    beyond: int  # what larger ones become


_SMALL = {"fp8_e4m3": SmallFloat(3, -6, 0x7E, 0x7F), "fp8_e5m2": SmallFloat(2, -14, 0x7B, 0x7C)}


@dataclass(frozen=True, slots=True)
class BinaryValues:
    content: bytes
    shape: tuple[int, ...]


def to_bytes(values_np: FloatArray, dtype: EmbedDType, endianness: Endianness) -> bytes:
    """Rounded to the nearest, ties to the even one, as torch does."""
    numbers_np = _in_dtype(np.ascontiguousarray(values_np, dtype=np.float32), dtype)
    return (numbers_np.byteswap() if endianness not in ("native", sys.byteorder) else numbers_np).tobytes()


def metadata(
    name: str,
    created: int,
    model: str,
    values: Sequence[BinaryValues],
    dtype: EmbedDType,
    endianness: Endianness,
    usage: dict[str, Any],
) -> str:
    """What a header says of bytes that follow each other."""
    items, start = [], 0
    for index, one in enumerate(values):
        end = start + len(one.content)
        place = {"start": start, "end": end, "shape": one.shape}
        items.append({"index": index, "embed_dtype": dtype, "endianness": endianness, **place})
        start = end
    header = json.dumps({"id": name, "created": created, "model": model, "data": items, "usage": usage})
    if len(header) > _MOST_METADATA:
        message = f"encoding_format: of {len(values)} inputs there is too much metadata for a header; use bytes_only"
        raise InvalidRequestError(message, "encoding_format")
    return header


def _in_dtype(values_np: FloatArray, dtype: EmbedDType) -> npt.NDArray[Any]:
    if dtype == "float32":
        return values_np
    if dtype == "float16":
        return values_np.astype(np.float16)
    if dtype == "bfloat16":
        bits_np = values_np.view(np.uint32)
        return ((bits_np + (((bits_np >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    return _in_eight_bits(values_np, _SMALL[dtype])


def _in_eight_bits(values_np: FloatArray, kind: SmallFloat) -> npt.NDArray[np.uint8]:
    sizes_np = np.abs(values_np)
    exponents_np = np.where(sizes_np > 0, np.frexp(sizes_np)[1] - 1, kind.least_exponent).clip(kind.least_exponent)
    counts_np = np.rint(np.ldexp(sizes_np, kind.mantissa - exponents_np)).astype(np.int32)
    steps_np = (exponents_np - kind.least_exponent + 1) << kind.mantissa
    bits_np = steps_np + counts_np - (1 << kind.mantissa)
    bits_np = np.where(bits_np > kind.most, kind.beyond, bits_np)
    return (bits_np | (np.signbit(values_np).astype(np.int32) << 7)).astype(np.uint8)
