"""Pictures, videos and sounds as a request names them, before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO

KINDS = (IMAGE, VIDEO, AUDIO)


@dataclass(frozen=True, slots=True)
class MediaPart:
    kind: str
    where: str  # the part of the request that holds it, for errors
    url: str = ""  # data:, http:, https: or file:
    value: Any = None  # given in Python in place of a URL: a picture of Pillow's, an array, bytes, a path, samples
    digest: str = ""  # what the user says stands for its content; "" = it is computed
    uuid: str = ""  # what the client calls it

    @property
    def was_sent_before(self) -> bool:
        """Its name alone is given."""
        return bool(self.uuid) and not self.url and self.value is None
