"""What is wrong with a recording."""

from __future__ import annotations

from cadence.core.errors import InvalidRequestError

FIELD = "file"  # the field of a request that holds a recording


class AudioError(InvalidRequestError):
    """A recording cannot be read, or is beyond a limit. The sentence names the part that is wrong."""

    def __init__(self, message: str, field: str = FIELD) -> None:
        super().__init__(message, field)
