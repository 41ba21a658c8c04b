"""vLLM's `mm_processor_kwargs`: what counts over the files of a model's processor, of all requests or of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadence.config.files.processor_fields import PROCESSOR_FIELDS
from cadence.core.checks import number
from cadence.core.errors import InvalidRequestError

FIELD = "mm_processor_kwargs"
FPS = "fps"  # of the frames of a video that come without times
_KNOWN = (*PROCESSOR_FIELDS, "size", "crop_size", "max_image_size", "min_pixels", "max_pixels", FPS)


def checked_kwargs(given: object, field: str = FIELD) -> dict[str, Any]:
    """What it does not name stays as the files say. Values are checked where a family reads them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{field} must be an object", field)
    for name in given:
        if name not in _KNOWN:
            where = f"{field}.{str(name)[:40]}"
            raise InvalidRequestError(f"{where} is not known; known: {', '.join(_KNOWN)}", where)
    if given.get(FPS) is not None and not 0 < number(f"{field}.{FPS}", given[FPS], low=0) <= 1000:
        raise InvalidRequestError(f"{field}.{FPS} must be above 0, and 1000 at most", f"{field}.{FPS}")
    return {name: value for name, value in given.items() if value is not None}
