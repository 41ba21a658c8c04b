"""Means and deviations of pixels, red, green and blue, that towers were trained with."""

from __future__ import annotations

Channels = tuple[float, float, float]

OPENAI_MEAN: Channels = (0.48145466, 0.4578275, 0.40821073)  # of every CLIP
OPENAI_STD: Channels = (0.26862954, 0.26130258, 0.27577711)

HALF: Channels = (0.5, 0.5, 0.5)  # both, of SigLIP: pixels become numbers from -1 to 1
