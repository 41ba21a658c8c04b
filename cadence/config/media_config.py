"""What a model sees and hears beside text, as its files say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadence.config.files.tower_weights import MAY_LACK
from cadence.config.hf import HFConfig
from cadence.config.media_intake import NO_INTAKE, MediaIntake
from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ENCODER_DECODERS, ENCODERS, SEEING

MOST_VECTORS = 16_384  # of one content


@dataclass(frozen=True, slots=True)
class MediaConfig:
    architecture: str = ""  # whose family prepares pictures; "" = there is no tower
    takes_vectors: bool = False  # prompts may be what an embedding would give: `prompt_embeds`
    longest: int = 0  # most vectors of one content; 0 = the model takes text alone
    room: int = 0  # tokens of a prompt
    step: int = 0  # most tokens of a request in a step: of a content whose tokens see each other no more
    intake: MediaIntake = field(default_factory=MediaIntake, compare=False)
    directory: Path = field(default=Path(), compare=False)  # of the model's files
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)  # its configuration

    @property
    def exists(self) -> bool:
        return self.longest > 0


NO_MEDIA = MediaConfig()


def resolve_media(
    hf: HFConfig, enable_prompt_embeds: bool, max_model_len: int, intake: MediaIntake = NO_INTAKE
) -> MediaConfig:
    sees = hf.family in SEEING and not (hf.family in MAY_LACK and hf.get("vision_config") is None)
    if not sees and not enable_prompt_embeds:
        return NO_MEDIA
    if enable_prompt_embeds and hf.family in (*ENCODERS, *ENCODER_DECODERS):
        message = f"enable_prompt_embeds cannot be used: {hf.name} has an encoder, and vectors are for decoders"
        raise ConfigError(message, "enable_prompt_embeds")
    return MediaConfig(
        architecture=hf.family if sees else "",
        takes_vectors=enable_prompt_embeds,
        longest=min(max_model_len, MOST_VECTORS),
        room=max_model_len,
        intake=intake,
        directory=hf.source.parent,
        raw=hf.raw,
    )
