"""Values that `/v1/embeddings` and `/pooling` answer as bytes, read by programs that import vLLM's functions for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class DTypeInfo:
    torch_dtype: torch.dtype
    numpy_view_dtype: type  # of so many bits

    @property
    def nbytes(self) -> int:
        return self.torch_dtype.itemsize


EMBED_DTYPES = {
    "float32": DTypeInfo(torch.float32, np.float32),
    "float16": DTypeInfo(torch.float16, np.float16),
    "bfloat16": DTypeInfo(torch.bfloat16, np.uint16),
    "fp8_e4m3": DTypeInfo(torch.float8_e4m3fn, np.uint8),
    "fp8_e5m2": DTypeInfo(torch.float8_e5m2, np.uint8),
}
ENDIANNESS = ("native", "big", "little")


@dataclass
class MetadataItem:
    """Where one text's values lie among the bytes of an answer."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: tuple[int, ...]


def build_metadata_items(
    embed_dtype: str, endianness: str, shape: tuple[int, ...], n_request: int
) -> list[MetadataItem]:
    """Of texts whose values have one shape, for answers without metadata."""
    size = math.prod(shape) * EMBED_DTYPES[embed_dtype].nbytes
    return [
        MetadataItem(index, embed_dtype, endianness, index * size, (index + 1) * size, shape)
        for index in range(n_request)
    ]


def binary2tensor(binary: bytes, shape: tuple[int, ...], embed_dtype: str, endianness: str) -> torch.Tensor:
    info = EMBED_DTYPES[embed_dtype]
    bits_np = np.frombuffer(binary, dtype=info.numpy_view_dtype).reshape(shape)
    bits_np = bits_np.byteswap() if endianness not in ("native", sys.byteorder) else bits_np.copy()
    return torch.from_numpy(bits_np).view(info.torch_dtype)


def tensor2binary(tensor: torch.Tensor, embed_dtype: str, endianness: str) -> bytes:
    info = EMBED_DTYPES[embed_dtype]
    bits = tensor.to(info.torch_dtype).contiguous().view(torch.uint8).numpy()
    bits_np = bits.reshape(-1).view(info.numpy_view_dtype)
    return (bits_np.byteswap() if endianness not in ("native", sys.byteorder) else bits_np).tobytes()


def decode_pooling_output(items: Sequence[MetadataItem], body: bytes) -> list[torch.Tensor]:
    """In the order of the texts."""
    ordered = sorted(items, key=lambda item: item.index)
    return [
        binary2tensor(body[item.start : item.end], tuple(item.shape), item.embed_dtype, item.endianness)
        for item in ordered
    ]
