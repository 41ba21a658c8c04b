"""Processors of transformers for the models of `tiny_vision`, by those of its classes that need Pillow alone."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

_IMAGES = {  # by what a model's files name -> the module, without Pil
    "CLIPImageProcessor": "clip",
    "SiglipImageProcessor": "siglip",
    "LlavaNextImageProcessor": "llava_next",
    "LlavaImageProcessor": "llava",
    "Idefics3ImageProcessor": "idefics3",
    "SmolVLMImageProcessor": "smolvlm",
    "Gemma3ImageProcessor": "gemma3",
}
_PROCESSORS = ("LlavaProcessor", "LlavaNextProcessor", "Idefics3Processor", "SmolVLMProcessor", "Gemma3Processor")


def image_processor(directory: Path) -> Any:
    name = json.loads((directory / "preprocessor_config.json").read_text())["image_processor_type"]
    module = import_module(f"transformers.models.{_IMAGES[name]}.image_processing_pil_{_IMAGES[name]}")
    return getattr(module, f"{name}Pil").from_pretrained(directory)


def open_processor(directory: Path) -> Any:
    """Called with text and images it gives `input_ids` and `pixel_values`."""
    import transformers

    told = json.loads((directory / "processor_config.json").read_text())
    name = told.pop("processor_class")
    if name not in _PROCESSORS:
        return transformers.AutoProcessor.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    if name == "SmolVLMProcessor":
        return _smolvlm_without_videos(image_processor(directory), tokenizer, told["image_seq_len"])
    return getattr(transformers, name)(image_processor(directory), tokenizer, **told)


def _smolvlm_without_videos(images: Any, tokenizer: Any, image_seq_len: int) -> Any:
    """Its videos need other packages."""
    from transformers import SmolVLMProcessor
    from transformers.processing_utils import ProcessorMixin

    class WithoutVideos(SmolVLMProcessor):  # type: ignore[misc]
        def __init__(self, image_processor: Any, tokenizer: Any) -> None:
            self.fake_image_token, self.image_token = tokenizer.fake_image_token, tokenizer.image_token
            self.global_image_token, self.image_seq_len = tokenizer.global_image_token, image_seq_len
            self.image_token_id, self.video_token = tokenizer.convert_tokens_to_ids(self.image_token), "<video>"
            ProcessorMixin.__init__(self, image_processor, tokenizer)

    return WithoutVideos(images, tokenizer)
