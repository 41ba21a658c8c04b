"""What the encoder of an encoder-decoder model reads for a request, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.attachments import Attachment

ENCODER = "encoder"  # the feature's name


@dataclass(frozen=True, slots=True)
class EncoderInput(Attachment):
    """A text or an audio signal. The request's own tokens are the decoder's prompt."""

    digest: str  # of the content, as hexadecimal digits
    length: int  # positions of the encoder's output: keys that cross attention sees
    token_ids_np: npt.NDArray[np.int32] = field(compare=False)  # [length], of text; [0] of audio
    features_np: npt.NDArray[np.float32] = field(compare=False)  # [mels, frames], of audio; [0, 0] of text
    feature: str = ENCODER

    lacking: ClassVar[str] = "this engine's model has no encoder: it takes a prompt alone"

    @classmethod
    def of_tokens(cls, token_ids: Sequence[int]) -> EncoderInput:
        token_ids_np = np.array(token_ids, dtype=np.int32)
        return cls(
            digest=sha256(b"tokens/" + token_ids_np.tobytes()).hexdigest(),
            length=len(token_ids_np),
            token_ids_np=token_ids_np,
            features_np=np.zeros((0, 0), dtype=np.float32),
        )

    @classmethod
    def of_features(cls, features_np: npt.NDArray[np.float32], length: int) -> EncoderInput:
        """features: [mels, frames], of which the encoder makes `length` positions"""
        content_np = np.ascontiguousarray(features_np, dtype=np.float32)
        head = f"features/{content_np.shape}/{length}/".encode()
        return cls(
            digest=sha256(head + content_np.tobytes()).hexdigest(),
            length=length,
            token_ids_np=np.zeros(0, dtype=np.int32),
            features_np=content_np,
        )

    @property
    def keys_digest(self) -> str:
        return self.digest

    @property
    def source_len(self) -> int:
        return self.length
