"""Whether the model that a config.json describes is one that is served."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.config.quantized import read_quantized
from cadence.core.architectures import ARCHITECTURES, unsupported
from cadence.core.errors import ModelFileError


def check_supported(hf: HFConfig) -> None:
    """What the files say they hold, before a device is looked for."""
    if hf.architecture not in ARCHITECTURES:
        code = "; the code that comes with it is never run" if hf.get("auto_map") else ""
        raise ModelFileError(f"{hf.source}: {unsupported(hf.architecture)}{code}", "architectures")
    read_quantized(hf)  # refuses what is not read
