"""Pictures and videos of prompts, as pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Picture:
    pixels_np: npt.NDArray[np.uint8]  # [H, W, 3]
    digest: str = ""


def as_picture(value: Any, field: str) -> Picture:
    return value if isinstance(value, Picture) else Picture(np.asarray(value))


def as_video(value: Any, field: str) -> Any:
    raise NotImplementedError
