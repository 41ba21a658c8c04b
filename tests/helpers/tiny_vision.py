"""Tiny random models that see, saved as users' models are: weights, configuration, tokenizer, and how pictures are
prepared for them.

`make_vision(family, directory)` gives the same files every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, MAX_LEN, PAD, WINDOW, randomise, save_tokenizer

_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_SCALED = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
_BICUBIC, _BILINEAR, _LANCZOS = 3, 2, 1

_PARTS = (  # of a message: macros of a template
    "{% macro image(m) %}{% if m['content'] is not string %}{% for c in m['content'] if c['type'] == 'image' %}IMAGE"
    "{% endfor %}{% endif %}{% endmacro %}{% macro text(m) %}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}{% endif %}{% endmacro %}"
)
_IN_TURN = (
    "{% macro all(m) %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% endmacro %}"
)
_VICUNA = (
    _PARTS.replace("IMAGE", "<image>\n")
    + "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'] | upper }}: {% endif %}{{ image(m) }}"
    "{{ text(m) }} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
_INSTRUCT = (
    _PARTS.replace("IMAGE", "<image>\n")
    + "{% for m in messages %}{% if m['role'] == 'assistant' %} {{ text(m) }}{{ eos_token }}{% else %}[INST] "
    "{{ image(m) }}{{ text(m) }} [/INST]{% endif %}{% endfor %}"
)
_SMOLVLM = (
    _IN_TURN.replace("IMAGE", "<image>")
    + "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}:{% if m['content'] is string or "
    "m['content'][0]['type'] == 'text' %} {% endif %}{{ all(m) }}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_GEMMA = (
    _IN_TURN.replace("IMAGE", "<start_of_image>")
    + "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ all(m) | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class _Family:
    build: Callable[[Mapping[str, int]], Any]  # ids of special tokens -> a model of transformers
    special: tuple[str, ...]
    template: str
    preprocessor: dict[str, Any]
    processor: dict[str, Any]
    tokens: Mapping[str, str]  # roles of tokens, as the tokenizer's configuration names them


def _text(ids: Mapping[str, int], **changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": max(ids.values()) + 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LEN,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
    }
    return sizes | changes


def _vision(**changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    return sizes | changes


def _llava(ids: Mapping[str, int]) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(**_vision(image_size=28, patch_size=7))
    text = LlamaConfig(**_text(ids))
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=ids["<image>"])
    )


def _llava_siglip(ids: Mapping[str, int]) -> Any:
    from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, SiglipVisionConfig

    vision = SiglipVisionConfig(**_vision(image_size=28, patch_size=7), vision_use_head=False)
    text = Qwen2Config(**_text(ids))
    strategy = {"vision_feature_select_strategy": "full", "vision_feature_layer": -1}
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=ids["<image>"], **strategy)
    )


def _llava_next(ids: Mapping[str, int]) -> Any:
    from transformers import CLIPVisionConfig, LlavaNextConfig, LlavaNextForConditionalGeneration, MistralConfig

    vision = CLIPVisionConfig(**_vision(image_size=28, patch_size=7))
    text = MistralConfig(**_text(ids, sliding_window=None))
    config = LlavaNextConfig(
        vision_config=vision, text_config=text, image_token_index=ids["<image>"], image_grid_pinpoints=_PINPOINTS
    )
    return LlavaNextForConditionalGeneration(config)


def _smolvlm(ids: Mapping[str, int]) -> Any:
    from transformers import LlamaConfig, SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMVisionConfig

    vision = SmolVLMVisionConfig(**_vision(image_size=32, patch_size=4))
    text = LlamaConfig(**_text(ids))
    config = SmolVLMConfig(vision_config=vision, text_config=text, image_token_id=ids["<image>"], scale_factor=4)
    return SmolVLMForConditionalGeneration(config)


def _idefics3(ids: Mapping[str, int]) -> Any:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3VisionConfig, LlamaConfig

    vision = Idefics3VisionConfig(**_vision(image_size=24, patch_size=4))  # tiles have more patches than places
    text = LlamaConfig(**_text(ids))
    config = Idefics3Config(vision_config=vision, text_config=text, image_token_id=ids["<image>"], scale_factor=2)
    return Idefics3ForConditionalGeneration(config)


def _gemma3(ids: Mapping[str, int]) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

    rope = {
        "full_attention": {"rope_type": "linear", "rope_theta": 100_000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    sizes = {"head_dim": 24, "sliding_window": WINDOW, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}
    text = Gemma3TextConfig(**_text(ids, **sizes), rope_parameters=rope, sliding_window_pattern=3)
    vision = SiglipVisionConfig(**_vision(image_size=32, patch_size=4), vision_use_head=False)
    tokens = {
        "image_token_index": ids["<image_soft_token>"],
        "boi_token_index": ids["<start_of_image>"],
        "eoi_token_index": ids["<end_of_image>"],
    }
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=16, **tokens)
    return Gemma3ForConditionalGeneration(config)


_PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
_TILE_MARKS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
_SQUARE = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "do_center_crop": True}
_CLIP_PIXELS = {**_SCALED, **_CLIP, **_SQUARE, "resample": _BICUBIC, "do_convert_rgb": True}
_TILES = {**_SCALED, **_HALF, "resample": _LANCZOS, "do_image_splitting": True, "do_pad": True, "do_convert_rgb": True}
_IMAGE = {"image_token": "<image>"}
_PATCHES = {**_IMAGE, "patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
_TURNS = ("<|im_start|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>")

_FAMILIES = {
    "llava": _Family(
        _llava,
        ("<image>",),
        _VICUNA,
        {"image_processor_type": "CLIPImageProcessor", **_CLIP_PIXELS},
        {"processor_class": "LlavaProcessor", **_PATCHES},
        _IMAGE,
    ),
    "llava_siglip": _Family(
        _llava_siglip,
        ("<image>",),
        _VICUNA,
        {
            "image_processor_type": "SiglipImageProcessor",
            **_SCALED,
            **_HALF,
            "size": {"height": 28, "width": 28},
            "resample": _BICUBIC,
        },
        {"processor_class": "LlavaProcessor", **_IMAGE, "patch_size": 7, "vision_feature_select_strategy": "full"},
        _IMAGE,
    ),
    "llava_next": _Family(
        _llava_next,
        ("<image>",),
        _INSTRUCT,
        {"image_processor_type": "LlavaNextImageProcessor", **_CLIP_PIXELS, "image_grid_pinpoints": _PINPOINTS},
        {"processor_class": "LlavaNextProcessor", **_PATCHES},
        _IMAGE,
    ),
    "smolvlm": _Family(
        _smolvlm,
        (*_TURNS, "<global-img>", *_TILE_MARKS),
        _SMOLVLM,
        {
            "image_processor_type": "SmolVLMImageProcessor",
            **_TILES,
            "size": {"longest_edge": 96},
            "max_image_size": {"longest_edge": 32},
        },
        {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
        {
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
            **_IMAGE,
        },
    ),
    "idefics3": _Family(
        _idefics3,
        _TURNS,  # the marks of tiles are plain text
        _SMOLVLM,
        {
            "image_processor_type": "Idefics3ImageProcessor",
            **_TILES,
            "size": {"longest_edge": 64},
            "max_image_size": {"longest_edge": 32},
        },
        {"processor_class": "Idefics3Processor", "image_seq_len": 16},
        {},
    ),
    "gemma3": _Family(
        _gemma3,
        ("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>", "<end_of_turn>"),
        _GEMMA,
        {
            "image_processor_type": "Gemma3ImageProcessor",
            **_SCALED,
            **_HALF,
            "size": {"height": 32, "width": 32},
            "resample": _BILINEAR,
            "do_pan_and_scan": None,
        },
        {"processor_class": "Gemma3Processor", "image_seq_length": 16},
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
}
VISION_FAMILIES = tuple(_FAMILIES)


@same_every_time
def make_vision(family: str, directory: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """Saves a model of `family` and all that goes with it into `directory`, which is made where needed, and returns
    it."""
    directory.mkdir(parents=True, exist_ok=True)
    found = _FAMILIES[family]
    ids = _save_tokenizer(directory, found)
    model = found.build(ids).eval()
    randomise(model, *((0.2, 0.02) if family == "gemma3" else (0.15, 0.08)))
    model.to(dtype).save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(found.preprocessor, indent=2))
    (directory / "processor_config.json").write_text(json.dumps(found.processor, indent=2))
    return directory


def _save_tokenizer(directory: Path, family: _Family) -> dict[str, int]:
    """-> ids of its special tokens"""
    save_tokenizer(directory)
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.save(str(path))
    settings = directory / "tokenizer_config.json"
    told = json.loads(settings.read_text()) | {"chat_template": family.template}
    if family.tokens:
        told["extra_special_tokens"] = dict(family.tokens)
    settings.write_text(json.dumps(told, indent=2))
    return {text: tokenizer.token_to_id(text) for text in family.special}
