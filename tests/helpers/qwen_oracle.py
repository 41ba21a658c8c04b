"""transformers as the oracle of Qwen2-VL and Qwen2.5-VL, pictures and videos: its processor of pictures needs Pillow
alone; that of videos needs more, so frames are put into patches here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.helpers.tiny_qwen_vl import IMAGE_PAD, MERGE, PATCH, VIDEO_PAD

CLASSES = {"2": "Qwen2VLForConditionalGeneration", "2.5": "Qwen2_5_VLForConditionalGeneration"}
SECONDS = 1.0  # of two frames
Medium = np.ndarray  # [H, W, 3] uint8, or [n, H, W, 3]


class QwenOracle:
    def __init__(self, generation: str, directory: Path) -> None:
        import transformers
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self._model = getattr(transformers, CLASSES[generation]).from_pretrained(directory, dtype=torch.float32).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(directory)
        self._timed = generation == "2.5"

    def pixels(self, medium: Medium) -> tuple[torch.Tensor, list[int]]:
        """-> patches [n, numbers], and the grid of time, lines and columns"""
        frames = medium if medium.ndim == 4 else medium[None]
        found: Any = self._processor(images=[Image.fromarray(frame) for frame in frames], return_tensors="pt")
        _, height, width = found["image_grid_thw"][0].tolist()
        parts = found["pixel_values"].view(len(frames), height * width, 3, 2, PATCH, PATCH)[:, :, :, 0]
        pairs = (torch.cat([parts, parts[-1:]]) if len(frames) % 2 else parts).unflatten(0, (-1, 2))
        grid = [len(pairs), height, width]
        return pairs.permute(0, 2, 3, 1, 4, 5).flatten(2).flatten(0, 1), grid

    @torch.inference_mode()
    def logprobs(self, text: str, media: Sequence[Medium], tokens: Sequence[int]) -> torch.Tensor:
        """[len(tokens), vocab] of each of these after the prompt, given those before it. text: with `<|image_pad|>` or
        `<|video_pad|>` once for each of the media"""
        inputs: dict[str, Any] = {}
        for name, values, depth in (("image", "pixel_values", 3), ("video", "pixel_values_videos", 4)):
            made = [self.pixels(medium) for medium in media if medium.ndim == depth]
            pad, counts = f"<|{name}_pad|>", [t * h * w // MERGE**2 for _, (t, h, w) in made]
            pieces = zip(text.split(pad), [*counts, 0], strict=True)
            text = "".join(piece + pad * count for piece, count in pieces)
            if made:
                inputs[f"{name}_grid_thw"] = torch.tensor([grid for _, grid in made])
                inputs[values] = torch.cat([pixels for pixels, _ in made])
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if self._timed and "video_grid_thw" in inputs:
            inputs["second_per_grid_ts"] = torch.full((len(inputs["video_grid_thw"]),), SECONDS)
        whole = torch.tensor([[*ids, *tokens]])
        kinds = (whole == IMAGE_PAD).int() + 2 * (whole == VIDEO_PAD).int()
        kinds[:, len(ids) :] = 0
        found = self._model(input_ids=whole, mm_token_type_ids=kinds, **inputs)
        return torch.log_softmax(found.logits[0, len(ids) - 1 : -1].float(), dim=-1)
