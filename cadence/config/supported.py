"""Whether the model that a config.json describes is one that is served."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.config.quantized import read_quantized
from cadence.core.architectures import unsupported
from cadence.core.errors import ModelFileError
from cadence.core.model_heads import MODEL_CLASSES, ModelHead


def check_supported(hf: HFConfig) -> None:
    """What the files say they hold, before a device is looked for."""
    if hf.architecture not in MODEL_CLASSES:
        code = "; the code that comes with it is never run" if hf.get("auto_map") else ""
        raise ModelFileError(f"{hf.source}: {unsupported(hf.architecture)}{code}", "architectures")
    read_quantized(hf)  # refuses what is not read


def check_generates(draft: HFConfig) -> None:
    """Of a model that drafts for another."""
    if draft.head is not ModelHead.LOGITS:
        message = f"speculative_config.model: {draft.architecture} generates no text"
        raise ModelFileError(message, "speculative_config.model")
