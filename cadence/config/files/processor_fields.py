"""The fields of `preprocessor_config.json` that are read here, with their types and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadence.config.files.field_types import (
    MOST_ID,
    Boolean,
    FieldType,
    Integer,
    ListOf,
    Nullable,
    Number,
    OneOrListOf,
    String,
)
from cadence.config.files.fields import PIXELS, check_fields, wrong

PROCESSOR_FIELDS: Mapping[str, FieldType] = {  # of preprocessor_config.json
    **dict.fromkeys(
        (
            "do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_pad", "do_image_splitting",
            "do_pan_and_scan", "do_convert_rgb",
        ),
        Nullable(Boolean()),
    ),
    "resample": Nullable(Integer(0, 5)),
    "rescale_factor": Nullable(Number(0, 1e6)),
    "image_mean": Nullable(OneOrListOf(Number(-1e3, 1e3))),
    "image_std": Nullable(OneOrListOf(Number(0, 1e3))),
    "image_processor_type": Nullable(String()),
    "image_grid_pinpoints": Nullable(ListOf(ListOf(PIXELS))),
    "pan_and_scan_min_crop_size": Nullable(Integer(1, MOST_ID)),
    "pan_and_scan_max_num_crops": Nullable(Integer(1, 64)),
    "pan_and_scan_min_ratio_to_activate": Nullable(Number(0, 1e6)),
}  # fmt: skip


def check_processor(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    checked = check_fields(raw, PROCESSOR_FIELDS, source, "")
    for name in ("image_mean", "image_std"):
        if isinstance(checked.get(name), list) and len(checked[name]) != 3:
            raise wrong(source, name, "three numbers", checked[name])
    return checked
