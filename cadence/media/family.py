"""What a family makes of pictures, frames and sounds on the host: values for its tower, and a text in the prompt."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cadence.core.media import MediaItem


@dataclass(frozen=True, slots=True)
class Content:
    """What a tower encodes by itself: a picture, one of its tiles, frames that are seen together."""

    values_np: npt.NDArray[Any]  # pixels as uint8 where they can be: they travel to the engine
    grid: tuple[int, ...]  # what the tower wants to know beside them
    length: int  # vectors that come of it


@dataclass(frozen=True, slots=True)
class Prepared:
    """One picture, video or sound."""

    contents: tuple[Content, ...]  # in the order of their tokens in `text`
    text: str  # takes the place of the placeholder; has `token` once for each vector, in one run for each content


@dataclass(frozen=True, slots=True)
class FamilyFiles:
    """What a family is made from."""

    config: Mapping[str, Any]  # config.json
    directory: Path  # of the model's files: preprocessor_config.json and its like
    token_id: Callable[[str], int]  # of a token's text; -1 = the vocabulary has none


class MediaFamily(Protocol):
    """Pictures that it refuses raise `InvalidRequestError` with the limit."""

    placeholders: Mapping[str, str]  # by kind, what stands for one of them in a prompt that people or templates write
    token_ids: Mapping[str, int]  # by kind, the token that stands for each vector once the prompt is expanded
    both_ways: bool  # tokens of a content see each other
    max_length: Mapping[str, int]  # by kind, most vectors of one content

    def prepare(self, kind: str, medium: Any) -> Prepared:
        """medium: a `Picture`, a `Video`, a `Sound`"""
        ...

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        """As `MediaInput` has them; [0, 5] of a family whose positions have one axis"""
        ...


# Architectures as Hugging Face names them -> the module of `cadence.media.families` and its class.
_FAMILIES = {
    "Gemma3ForConditionalGeneration": "gemma3:Gemma3Family",
    "Idefics3ForConditionalGeneration": "idefics3:IdeficsFamily",
    "LlavaForConditionalGeneration": "llava:LlavaFamily",
    "LlavaNextForConditionalGeneration": "llava_next:LlavaNextFamily",
    "Qwen2AudioForConditionalGeneration": "qwen_audio:QwenAudioFamily",
    "Qwen2VLForConditionalGeneration": "qwen_vl:QwenFamily",
    "Qwen2_5_VLForConditionalGeneration": "qwen_vl:QwenFamily",
    "SmolVLMForConditionalGeneration": "idefics3:IdeficsFamily",
}


def open_family(architecture: str, files: FamilyFiles) -> MediaFamily:
    """architecture: one of `core/architectures.py`'s `SEEING`"""
    module, _, name = _FAMILIES[architecture].partition(":")
    family: MediaFamily = getattr(importlib.import_module(f"cadence.media.families.{module}"), name)(files)
    return family
