"""The bodies of /v1/embeddings, /pooling and /classify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.server.protocol.common import INT64
from cadence.entrypoints.server.protocol.pooling.binary import EmbedDType, Endianness
from cadence.entrypoints.server.protocol.pooling.fields import HINTS, PooledBody
from cadence.entrypoints.server.protocol.unsupported import Unsupported

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]  # bytes are the whole answer


class EmbeddingBody(PooledBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = HINTS

    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDType = "float32"  # of base64 and bytes
    endianness: Endianness = "native"
    dimensions: int | None = Field(default=None, ge=1, lt=INT64)  # leading entries that are kept
    normalize: bool | None = None  # to length 1; None = as the model's files say

    def params(self) -> PoolingParams:
        return PoolingParams(
            task="embed", dimensions=self.dimensions, normalize=self.normalize, use_activation=self.use_activation
        )


class PoolingBody(PooledBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = HINTS

    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDType = "float32"
    endianness: Endianness = "native"
    task: str | None = Field(default=None, max_length=64)  # None = what the model was made for
    dimensions: int | None = Field(default=None, ge=1, lt=INT64)
    normalize: bool | None = None
    activation: bool | None = None  # older names of use_activation
    softmax: bool | None = None

    def params(self) -> PoolingParams:
        return PoolingParams(
            task=self.task,
            dimensions=self.dimensions,
            normalize=self.normalize,
            use_activation=self.use_activation,
            activation=self.activation,
            softmax=self.softmax,
        )


class ClassifyBody(PooledBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = HINTS

    activation: bool | None = None  # an older name of use_activation

    def params(self) -> PoolingParams:
        return PoolingParams(task="classify", use_activation=self.use_activation, activation=self.activation)
