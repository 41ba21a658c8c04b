"""Values as clients get them: numbers in JSON or bytes in base64, classes, scores."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.stream import encode_json
from cadence.entrypoints.server.protocol.pooling.binary import EmbedDType, Endianness, to_bytes

FloatArray = npt.NDArray[np.float32]

MAX_VALUES = 2**23  # of one answer: about 170 MB of JSON


def check_values(count: int, field: str) -> None:
    """Before anything is computed."""
    if count > MAX_VALUES:
        raise InvalidRequestError(
            f"{field} asks for {count} values; an answer has at most {MAX_VALUES}: send fewer texts at once", field
        )


def encoded(
    values_np: FloatArray, encoding_format: str, dtype: EmbedDType = "float32", endianness: Endianness = "little"
) -> msgspec.Raw:
    """values [entries] or [tokens, entries] as JSON, which takes less memory than its numbers would. dtype and
    endianness are those of base64."""
    if encoding_format == "base64":
        return msgspec.Raw(b'"' + base64.b64encode(to_bytes(values_np, dtype, endianness)) + b'"')
    if values_np.ndim == 1:
        return msgspec.Raw(encode_json(values_np.tolist()))
    return msgspec.Raw(b"[" + b",".join(encode_json(row_np.tolist()) for row_np in values_np) + b"]")


def class_of(probs_np: FloatArray, labels: Sequence[str]) -> dict[str, Any]:
    """probs [classes]"""
    best = int(np.argmax(probs_np))
    label = labels[best] if best < len(labels) else None
    return {"label": label, "probs": probs_np.tolist(), "num_classes": len(probs_np)}
