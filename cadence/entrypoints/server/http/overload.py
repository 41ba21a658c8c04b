"""Why a request is rejected, and when to try again."""

from __future__ import annotations

from typing import NamedTuple


class Overload(NamedTuple):
    """Why a request is rejected, and when to try again."""

    message: str
    retry_after: int  # seconds
