"""What a model that sees leaves out of the sections of its configuration: transformers' value for it.

Files of the hub name in `text_config` and `vision_config` only what differs from the class of the section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadence.config.files.fields import wrong

TEXT, VISION = "text_config", "vision_config"

_LLAMA: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}

_TEXTS: dict[str, dict[str, Any]] = {  # by `model_type`
    "llama": _LLAMA,
    "mistral": _LLAMA
    | {
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "qwen2": _LLAMA
    | {
        "vocab_size": 151_936,
        "intermediate_size": 22_016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32_768,
    },
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
}

_SIGLIP: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}

_VISIONS: dict[str, dict[str, Any]] = {  # by `model_type`
    "siglip_vision_model": _SIGLIP,
    "clip_vision_model": _SIGLIP | {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "idefics3_vision": _SIGLIP | {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32},
}

_LLAVA_TOWER: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


@dataclass(frozen=True, slots=True)
class _SectionDefaults:
    kind: str  # its `model_type` where it names none
    fixed: bool = False  # and where it names another
    absent: Mapping[str, Any] = field(default_factory=dict)  # what counts where there is no section at all
    optional: bool = False  # then there is no such part


_LLAVA = {TEXT: _SectionDefaults("llama"), VISION: _SectionDefaults("clip_vision_model", absent=_LLAVA_TOWER)}
_IDEFICS = {
    TEXT: _SectionDefaults("llama", absent={"rms_norm_eps": 1e-5}),
    VISION: _SectionDefaults("idefics3_vision", fixed=True),
}

_SECTIONS: dict[str, dict[str, _SectionDefaults]] = {  # by architecture
    "Gemma3ForConditionalGeneration": {
        TEXT: _SectionDefaults("gemma3_text", fixed=True),
        VISION: _SectionDefaults("siglip_vision_model", optional=True),
    },
    "Idefics3ForConditionalGeneration": _IDEFICS,
    "LlavaForConditionalGeneration": _LLAVA,
    "LlavaNextForConditionalGeneration": _LLAVA,
    "Qwen2AudioForConditionalGeneration": {TEXT: _SectionDefaults("qwen2")},
    "SmolVLMForConditionalGeneration": _IDEFICS,
}

_OUTER: dict[str, dict[str, Any]] = {  # by architecture, what is outside of sections
    "LlavaNextForConditionalGeneration": {
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    },
}


def with_section_defaults(raw: Mapping[str, Any], architecture: str, source: Path) -> dict[str, Any]:
    """With whole sections; what sizes the text's section has, the outer fields have, too. Others stay as they are."""
    sections = _SECTIONS.get(architecture, {})
    filled = dict(raw)
    filled |= {name: value for name, value in _OUTER.get(architecture, {}).items() if raw.get(name) is None}
    for name, section in sections.items():
        found = raw.get(name)
        if found is None and section.optional:
            continue
        if not isinstance(found, dict | None):
            raise wrong(source, name, "an object", found)
        told = section.absent if found is None else found
        kind = section.kind if section.fixed else told.get("model_type") or section.kind
        filled[name] = {**_defaults(name, kind), **told, "model_type": kind}
    if TEXT in sections:
        text = filled[TEXT]
        filled |= {key: text[key] for key in _defaults(TEXT, text["model_type"])}
    return filled


def _defaults(name: str, kind: str) -> Mapping[str, Any]:
    """{} of a kind that is not known: it is refused where the model is built."""
    return (_TEXTS if name == TEXT else _VISIONS).get(kind, {})
