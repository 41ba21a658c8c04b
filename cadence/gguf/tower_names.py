"""Where a GGUF file keeps the tensors of a tower that Hugging Face's checkpoints have."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

FFN_UP, FFN_DOWN = "ffn_up", "ffn_down"
_LAYER = re.compile(r"v\.blk\.(\d+)\.")


class TowerPlace(NamedTuple):
    """Of a tensor of the file in one of a checkpoint."""

    hf: str
    part: int = 0  # which it is of those that make up the checkpoint's
    parts: int = 1  # of matrices: one below the other; of convolutions: one frame each
    plus_one: bool = False  # the file holds 1 + w


_CLIP = "vision_tower.vision_model"
_CLIP_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    FFN_UP: "mlp.fc1",
    FFN_DOWN: "mlp.fc2",
}
_CLIP_TOP = {
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding",
    "v.pre_ln": "pre_layrnorm",
    "v.post_ln": "post_layernorm",
}
_QWEN_LAYER = {"attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2"}
_QWEN_PARTS = {"attn_q": 0, "attn_k": 1, "attn_v": 2}
_QWEN2 = _QWEN_LAYER | {FFN_UP: "mlp.fc1", FFN_DOWN: "mlp.fc2"}
_QWEN25 = _QWEN_LAYER | {FFN_UP: "mlp.up_proj", FFN_DOWN: "mlp.down_proj", "ffn_gate": "mlp.gate_proj"}
_QWEN_TOP = {"v.post_ln": "visual.merger.ln_q", "mm.0": "visual.merger.mlp.0", "mm.2": "visual.merger.mlp.2"}
_LLAVA_TOP = {"mm.0": "multi_modal_projector.linear_1", "mm.2": "multi_modal_projector.linear_2"}
_BARE = {"v.class_embd": f"{_CLIP}.embeddings.class_embedding"}  # names that end with no kind
_NEWLINE = {"v.image_newline": "image_newline", "model.image_newline": "image_newline"}


def _found(base: str, top: dict[str, str], layer: dict[str, str], name: str) -> TowerPlace | None:
    """base: what names of the tower begin with"""
    if name in _BARE:
        return TowerPlace(_BARE[name])
    stem, _, kind = name.rpartition(".")
    if (numbers := _LAYER.match(stem)) is not None:
        inner = layer.get(stem[numbers.end() :])
        return None if inner is None else TowerPlace(f"{base}.encoder.layers.{numbers[1]}.{inner}.{kind}")
    if stem in top:
        return TowerPlace(f"{top[stem]}.{kind}")
    return TowerPlace(f"{base}.{_CLIP_TOP[stem]}.{kind}") if stem in _CLIP_TOP else None


def _llava(name: str) -> TowerPlace | None:
    return TowerPlace(_NEWLINE[name]) if name in _NEWLINE else _found(_CLIP, _LLAVA_TOP, _CLIP_LAYER, name)


def _idefics3(name: str) -> TowerPlace | None:
    projection = {"mm.model.fc": "connector.modality_projection.proj"}
    return _found("vision_model", projection, _CLIP_LAYER, name)


def _gemma3(name: str) -> TowerPlace | None:
    if name == "mm.input_projection.weight":
        return TowerPlace("multi_modal_projector.mm_input_projection_weight")
    if name == "mm.soft_emb_norm.weight":
        return TowerPlace("multi_modal_projector.mm_soft_emb_norm.weight", plus_one=True)
    return _found(_CLIP, {}, _CLIP_LAYER, name)


def _qwen(name: str, layer: dict[str, str]) -> TowerPlace | None:
    if name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        return TowerPlace("visual.patch_embed.proj.weight", part=int(name.endswith(".1")), parts=2)
    stem, _, kind = name.rpartition(".")
    if (numbers := _LAYER.match(stem)) is None:
        return TowerPlace(f"{_QWEN_TOP[stem]}.{kind}") if stem in _QWEN_TOP else None
    block, inner = f"visual.blocks.{numbers[1]}", stem[numbers.end() :]
    if inner in _QWEN_PARTS:
        return TowerPlace(f"{block}.attn.qkv.{kind}", part=_QWEN_PARTS[inner], parts=3)
    return TowerPlace(f"{block}.{layer[inner]}.{kind}") if inner in layer else None


def tower_place(projector: str, name: str) -> TowerPlace:
    """A name nothing is known of is kept: the model's loader reports it as left over."""
    found = _PLACES[projector](name)
    return TowerPlace(name) if found is None else found


_PLACES: dict[str, Callable[[str], TowerPlace | None]] = {
    "mlp": _llava,
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "qwen2vl_merger": partial(_qwen, layer=_QWEN2),
    "qwen2.5vl_merger": partial(_qwen, layer=_QWEN25),
}
