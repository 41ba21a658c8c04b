"""Tiny models that see as llama.cpp would write them: a GGUF file with the language model, and "mmproj" with the
tower. From a folder that `make_vision` or `make_qwen_vl` made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file

from tests.helpers.gguf_files import add_metadata, decoder_metadata

CONTROL, NORMAL = 3, 1  # of tokenizer.ggml.token_type
_VISION = re.compile(r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline)\b")
_TEXT_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA_LAYER = _TEXT_LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TEXT_TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_TOWER = (  # of names of a tower without their beginnings
    (r"embeddings\.class_embedding", "v.class_embd"),
    (r"embeddings\.patch_embedding", "v.patch_embd"),
    (r"embeddings\.position_embedding", "v.position_embd"),
    (r"pre_layrnorm", "v.pre_ln"),
    (r"post_layernorm|merger\.ln_q", "v.post_ln"),
    (r"(?:encoder\.layers|blocks)\.(\d+)\.self_attn\.(q|k|v)_proj", r"v.blk.\1.attn_\2"),
    (r"(?:encoder\.layers|blocks)\.(\d+)\.(?:self_attn\.out_proj|attn\.proj)", r"v.blk.\1.attn_out"),
    (r"(?:encoder\.layers|blocks)\.(\d+)\.(?:layer_norm|norm)(1|2)", r"v.blk.\1.ln\2"),
    (r"(?:encoder\.layers|blocks)\.(\d+)\.mlp\.(?:fc1|up_proj)", r"v.blk.\1.ffn_up"),
    (r"(?:encoder\.layers|blocks)\.(\d+)\.mlp\.(?:fc2|down_proj)", r"v.blk.\1.ffn_down"),
    (r"blocks\.(\d+)\.mlp\.gate_proj", r"v.blk.\1.ffn_gate"),
    (r"linear_1|merger\.mlp\.0", "mm.0"),
    (r"linear_2|merger\.mlp\.2", "mm.2"),
    (r"modality_projection\.proj", "mm.model.fc"),
    (r"mm_soft_emb_norm", "mm.soft_emb_norm"),
)


@dataclass(frozen=True)
class Written:
    """How the files are written."""

    swapped: bool = False  # the two maps of a tower's layers by each other's names, as files of 2023 have it
    kind: str = "F32"  # of the tower's matrices
    renamed: Mapping[str, str] = field(default_factory=dict)  # tokens of the vocabulary
    tower: Mapping[str, Any] = field(default_factory=dict)  # metadata of the tower, over its own
    text: Mapping[str, Any] = field(default_factory=dict)  # of the language model


AS_NOW = Written()


def write_pair(source: Path, folder: Path, how: Written = AS_NOW) -> Path:
    """-> the file of the language model; the tower's is beside it"""
    from transformers import AutoConfig

    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = AutoConfig.from_pretrained(source), load_file(source / "model.safetensors")
    text = {name: tensor for name, tensor in tensors.items() if not _VISION.match(name)}
    model = folder / "model.gguf"
    metadata = _text_metadata(config) | _tokenizer(source, config.text_config.vocab_size, how.renamed) | how.text
    _write(model, _architecture(config), metadata, _text_tensors(config, text))
    tower = {name: tensor for name, tensor in tensors.items() if _VISION.match(name)}
    metadata = _tower_metadata(source, config) | how.tower
    _write(folder / "mmproj-model-f16.gguf", "clip", metadata, _tower_tensors(tower, how.swapped), how.kind)
    return model


def _architecture(config: Any) -> str:
    if config.model_type.startswith("qwen2"):
        return "qwen2vl"
    return {"gemma3_text": "gemma3", "qwen2": "qwen2"}.get(config.text_config.model_type, "llama")


def _text_metadata(config: Any) -> dict[str, Any]:
    text = config.text_config
    found = {name: value for name, value in decoder_metadata(text).items() if not name.startswith("tokenizer.")}
    rope = text.rope_parameters
    if "mrope_section" in rope:
        found[".rope.dimension_sections"] = [*rope["mrope_section"], 0]
    if (full := rope.get("full_attention", {})).get("rope_type") == "linear":
        found |= {".rope.scaling.type": "linear", ".rope.scaling.factor": float(full["factor"])}
        found |= {".attention.sliding_window": text.sliding_window, ".attention.sliding_window_pattern": 3}
        found[".rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    return found


def _tokenizer(source: Path, size: int, renamed: Mapping[str, str]) -> dict[str, Any]:
    model = json.loads((source / "tokenizer.json").read_text())
    settings = json.loads((source / "tokenizer_config.json").read_text())
    tokens = {number: text for text, number in model["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in model["added_tokens"]}
    tokens |= {number: renamed.get(text, text) for number, text in special.items()}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["model"]["merges"]]
    ids = {text: number for number, text in tokens.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [tokens.get(number, f"[PAD{number}]") for number in range(size)],
        "tokenizer.ggml.token_type": [CONTROL if number in special else NORMAL for number in range(size)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
        **{f"tokenizer.ggml.{role}_token_id": ids[settings[f"{role}_token"]] for role in ("bos", "eos")},
        "tokenizer.chat_template": settings["chat_template"],
    }


def _text_tensors(config: Any, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    text = config.text_config
    gemma, pairs = text.model_type == "gemma3_text", text.model_type in ("llama", "mistral")
    heads = {"attn_q": text.num_attention_heads, "attn_k": text.num_key_value_heads}
    for name, tensor in tensors.items():
        stem, kind = name.rsplit(".", 1)
        found = re.search(r"layers\.(\d+)\.(.*)", stem)
        if found is None:
            yield f"{_TEXT_TOP[stem.rsplit('.', 1)[-1]]}.{kind}", tensor + 1 if gemma and "norm" in stem else tensor
            continue
        inner = (_GEMMA_LAYER if gemma else _TEXT_LAYER)[found[2]]
        if gemma and "norm" in inner:
            tensor = tensor + 1
        if pairs and inner in heads:
            tensor = tensor.view(heads[inner], 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
        yield f"blk.{found[1]}.{inner}.{kind}", tensor


def _tower_tensors(tensors: Mapping[str, torch.Tensor], swapped: bool) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors.items():
        if name.endswith("mm_input_projection_weight"):
            yield "mm.input_projection.weight", tensor
        elif name.endswith("patch_embed.proj.weight"):  # a frame each
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        elif ".attn.qkv." in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                yield _tower_name(name.replace(".attn.qkv.", f".self_attn.{part}_proj."), swapped), piece
        elif name.endswith("image_newline"):
            yield "v.image_newline", tensor
        else:
            yield _tower_name(name, swapped), tensor + 1 if "soft_emb_norm" in name else tensor


def _tower_name(name: str, swapped: bool) -> str:
    for pattern, to in _TOWER:
        found = re.search(rf"(?:^|\.)(?:{pattern})(\.weight|\.bias|$)", name)
        if found is not None:
            made = found.expand(to) + found[found.re.groups]
            return _other(made) if swapped else made
    raise KeyError(name)


def _other(name: str) -> str:
    if ".ffn_up." in name:
        return name.replace(".ffn_up.", ".ffn_down.")
    return name.replace(".ffn_down.", ".ffn_up.")


def _tower_metadata(source: Path, config: Any) -> dict[str, Any]:
    vision, text = config.vision_config, config.text_config
    picture = json.loads((source / "preprocessor_config.json").read_text())
    sides = {
        "embedding_length": getattr(vision, "embed_dim", None) or vision.hidden_size,
        "block_count": getattr(vision, "depth", None) or vision.num_hidden_layers,
        "attention.head_count": getattr(vision, "num_heads", None) or vision.num_attention_heads,
        "feed_forward_length": getattr(vision, "intermediate_size", 0),
        "projection_dim": text.hidden_size,
        "image_size": getattr(vision, "image_size", None) or 560,
        "patch_size": vision.patch_size,
        "attention.layer_norm_epsilon": float(getattr(vision, "layer_norm_eps", 1e-6)),
        "image_mean": picture["image_mean"],
        "image_std": picture["image_std"],
    }
    found = {f"clip.vision.{name}": value for name, value in sides.items()}
    return found | {"clip.has_vision_encoder": True} | _family_metadata(config, picture)


def _family_metadata(config: Any, picture: Mapping[str, Any]) -> dict[str, Any]:
    vision, kind = config.vision_config, config.model_type
    gelu = {"clip.use_gelu": True}
    if kind in ("smolvlm", "idefics3"):
        sizes = {"projector.scale_factor": config.scale_factor, "preproc_image_size": picture["size"]["longest_edge"]}
        return {"clip.projector_type": "idefics3", **gelu} | {f"clip.vision.{name}": sizes[name] for name in sizes}
    if kind == "gemma3":
        side = vision.image_size // vision.patch_size // round(config.mm_tokens_per_image**0.5)
        return {"clip.projector_type": "gemma3", **gelu, "clip.vision.projector.scale_factor": side}
    pixels = {f"clip.vision.image_{name}_pixels": picture.get(f"{name}_pixels") for name in ("min", "max")}
    if kind == "qwen2_vl":
        return {"clip.projector_type": "qwen2vl_merger", **pixels}
    if kind == "qwen2_5_vl":
        windows = {"n_wa_pattern": vision.fullatt_block_indexes[0] + 1, "window_size": vision.window_size}
        own = {f"clip.vision.{name}": value for name, value in windows.items()}
        return {"clip.projector_type": "qwen2.5vl_merger", "clip.use_silu": True, **own, **pixels}
    layer = config.vision_feature_layer
    used = layer if layer >= 0 else vision.num_hidden_layers + 1 + layer
    found = {"clip.projector_type": "mlp", "clip.has_llava_projector": True, "clip.vision.feature_layer": [used]}
    if vision.hidden_act != "quick_gelu":
        found |= gelu
    if kind == "llava_next":
        flat = [side for size in config.image_grid_pinpoints for side in size]
        found |= {"clip.vision.image_grid_pinpoints": flat, "clip.vision.mm_patch_merge_type": "spatial_unpad"}
    return found


def _write(
    path: Path, arch: str, metadata: Mapping[str, Any], tensors: Iterator[tuple[str, torch.Tensor]], kind: str = "F32"
) -> None:
    """kind: of matrices"""
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        add_metadata(writer, arch + key if key.startswith(".") else key, value)
    for name, tensor in tensors:
        array_np = np.ascontiguousarray(tensor.float().numpy())
        if kind == "F16" and array_np.ndim > 1:
            writer.add_tensor(name, array_np.astype(np.float16), raw_dtype=GGMLQuantizationType.F16)
        else:
            writer.add_tensor(name, array_np, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
