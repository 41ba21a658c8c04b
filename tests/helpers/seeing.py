"""transformers as the oracle of models that see: its processor makes the inputs, its model the logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.helpers.vision_processors import open_processor


def noise(height: int, width: int, seed: int) -> Image.Image:
    """A picture with coarse shapes and fine grain, so that sizes and places matter."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 200, (-(-height // 8), -(-width // 8), 3)), np.ones((8, 8, 1)))[:height, :width]
    return Image.fromarray((coarse + rng.integers(0, 56, (height, width, 3))).astype(np.uint8))


class SeeingOracle:
    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForImageTextToText

        self.model = AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._processor = open_processor(directory)

    def inputs(self, text: str, pictures: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        images = {"images": [list(pictures)]} if pictures else {}
        found = self._processor(text=[text], return_tensors="pt", **images)
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    @torch.inference_mode()
    def logprobs(self, text: str, pictures: Sequence[Image.Image], tokens: Sequence[int]) -> torch.Tensor:
        """[len(tokens), vocab] of each of these after the prompt, given those before it."""
        inputs = self.inputs(text, pictures)
        more = torch.tensor([list(tokens)])
        count = inputs["input_ids"].shape[1]
        inputs["input_ids"] = torch.cat([inputs["input_ids"], more], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "token_type_ids" in inputs:
            inputs["token_type_ids"] = torch.cat([inputs["token_type_ids"], torch.zeros_like(more)], dim=1)
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], dim=1)
        logits = self.model(**inputs).logits[0, count - 1 : -1]
        return torch.log_softmax(logits.float(), dim=-1)


class QwenOracle:
    """Of Qwen2-VL and Qwen2.5-VL, whose processor needs packages that are not here: only their pictures' half of it is
    transformers', the prompt comes expanded."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForImageTextToText
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.model = AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._pictures = Qwen2VLImageProcessorPil.from_pretrained(directory)

    def pixels(self, pictures: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        return dict(self._pictures(images=list(pictures), return_tensors="pt")) if pictures else {}

    @torch.inference_mode()
    def logprobs(self, prompt: Sequence[int], pictures: Sequence[Image.Image], tokens: Sequence[int]) -> torch.Tensor:
        """[len(tokens), vocab] of each of these after the prompt, given those before it."""
        ids = torch.tensor([[*prompt, *tokens]])
        pad = self.model.config.image_token_id
        given = {"mm_token_type_ids": (ids == pad).int(), "attention_mask": torch.ones_like(ids)}
        given |= self.pixels(pictures)
        logits = self.model(input_ids=ids, **given).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits.float(), dim=-1)
