"""What a family makes of pictures, frames and sounds on the host: values for its tower, and a text in the prompt."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cadence.core.errors import ModelFileError
from cadence.core.inputs.media import PROCESSOR_FIELD, MediaItem


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


class VectorToken(NamedTuple):
    """Of which a prompt has one for each vector."""

    text: str
    number: int


@dataclass(frozen=True, slots=True)
class FamilyFiles:
    """What a family is made from."""

    config: Mapping[str, Any]  # config.json
    directory: Path  # of the model's files: preprocessor_config.json and its like
    token_id: Callable[[str], int]  # of a token's text; -1 = the vocabulary has none
    changes: Mapping[str, Any] = field(default_factory=dict)  # over what files say of the processor

    def vector_token(self, names: Sequence[str], usual: int, *texts: str) -> VectorToken:
        """What stands for a vector in prompts. names: of the fields that may say it; usual: where they do not. A GGUF
        file says nothing of it, and its vocabulary may lack the token: then the first of `texts` that it has does."""
        told = next((self.config[name] for name in names if self.config.get(name) is not None), None)
        if told is not None or PROCESSOR_FIELD not in self.config:
            return VectorToken(texts[0], usual if told is None else int(told))
        found = ((text, self.token_id(text)) for text in texts)
        known = next((VectorToken(text, number) for text, number in found if number >= 0), None)
        if known is None:
            message = f"the vocabulary has no token for pictures: none of {', '.join(texts)}"
            raise ModelFileError(f"{self.directory}: {message}", "model")
        return known


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
    """architecture: one of `core/model/architectures.py`'s `SEEING`"""
    module, _, name = _FAMILIES[architecture].partition(":")
    family: MediaFamily = getattr(importlib.import_module(f"cadence.media.families.{module}"), name)(files)
    return family
