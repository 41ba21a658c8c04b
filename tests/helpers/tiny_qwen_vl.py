"""Tiny random Qwen2-VL and Qwen2.5-VL, saved as users' models are: with the processor's files, the special tokens and a
chat template of the family.

`make_qwen_vl("2", directory)`, `make_qwen_vl("2.5", directory)`; `flatten_config(directory)` writes the configuration
as files of the hub have it, `rename_weights(directory)` the names that weights have in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, MAX_LEN, PAD, VOCAB, randomise, save_tokenizer

GENERATIONS = ("2", "2.5")
START, END, IMAGE_PAD, VIDEO_PAD = VOCAB, VOCAB + 1, VOCAB + 2, VOCAB + 3
_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE, WINDOW = 4, 2, 32  # pixels, patches, pixels
MIN_PIXELS, MAX_PIXELS = 16 * 16, 64 * 64
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


@same_every_time
def make_qwen_vl(generation: str, directory: Path, *, dtype: torch.dtype = torch.float32, **text: Any) -> Path:
    """Saves a model and all that goes with it into `directory`, which is made where needed, and returns it. text:
    changes to the language model's sizes."""
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    name = "Qwen2VL" if generation == "2" else "Qwen2_5_VL"
    config = getattr(transformers, f"{name}Config")(
        text_config=_text() | text,
        vision_config=_vision(generation),
        image_token_id=IMAGE_PAD,
        video_token_id=VIDEO_PAD,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=False,
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    randomise(model, 0.15, 0.08)
    model.to(dtype).save_pretrained(directory)
    _save_tokenizer(directory)
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": f"{name}Processor", **_CLIP}
    sizes = {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS}
    patches = {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings | sizes | patches, indent=2))
    return directory


def _text() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB + len(_MARKS),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0},
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def _vision(generation: str) -> dict[str, Any]:
    both = {"depth": 4, "num_heads": 2, "in_channels": 3, "patch_size": PATCH, "spatial_merge_size": MERGE}
    if generation == "2":
        return both | {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    sizes = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 44}
    return both | sizes | {"window_size": WINDOW, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2}


def _save_tokenizer(directory: Path) -> None:
    save_tokenizer(directory)
    path, settings = directory / "tokenizer.json", directory / "tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _MARKS])
    assert [tokenizer.token_to_id(text) for text in _MARKS] == [START, END, IMAGE_PAD, VIDEO_PAD]
    tokenizer.save(str(path))
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": _TEMPLATE}, indent=2))


def flatten_config(directory: Path) -> None:
    """The language model's fields beside the others, and the tower's as they were first named."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    text, vision = config.pop("text_config"), config["vision_config"]
    rope = text.pop("rope_parameters")
    vision["in_chans"] = vision.pop("in_channels")
    vision.pop("rope_parameters", None)
    vision["model_type"] = config["model_type"]
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = {**text, **config, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    path.write_text(json.dumps(flat, indent=2))


def rename_weights(directory: Path) -> None:
    path, begins = directory / "model.safetensors", {"model": "model.language_model", "visual": "model.visual"}
    tensors = {}
    for name, tensor in load_file(path).items():
        first, _, rest = name.partition(".")
        tensors[f"{begins.get(first, first)}.{rest}"] = tensor
    save_file(tensors, path, metadata={"format": "pt"})
