"""GGUF files that hold a tower ("mmproj"): with a language model's, what the `config.json` of both would say.

Sizes that the file's tensors have are taken from them: older files name some wrongly, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from cadence.core.errors import WeightsError
from cadence.core.inputs.media import PROCESSOR_FIELD
from cadence.core.model.architectures import MOST_LAYERS
from cadence.core.shown import shown
from cadence.gguf.config import SECTIONS_FIELD
from cadence.gguf.file import GGUFFile
from cadence.gguf.metadata import Metadata
from cadence.gguf.tower_names import FFN_DOWN, FFN_UP

_ARCHITECTURE = "clip"
_GEMMA_SQUARE = 4  # patches each way that a vector is the mean of, where the file does not say
_IDEFICS_TILES = 4  # tiles of a line, at most, where the file does not say
_QWEN_SIZES = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16_384}  # pixels: every release's
_QWEN_TOKENS_PER_SECOND = 2  # of every release with windows
_SQUARE_CUT = {"do_center_crop": True, "resample": 3}

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Tower:
    read: Callable[[Metadata, Config], Config]
    texts: tuple[str, ...]  # language models that it may go with, by `model_type`
    last: str  # the tensor whose rows, or columns, are a token's vector
    by_rows: bool = True


def tower_config(file: GGUFFile, text: Config) -> Config:
    """text: as `gguf_config` has it, of the model's own file"""
    meta = Metadata(file)
    kind = projector(meta)
    tower = _TOWERS[kind]
    if text["model_type"] not in tower.texts or (_is_qwen(kind) and SECTIONS_FIELD not in text):
        raise WeightsError(f"{file.path}: this tower ({kind}) does not go with a model of type {text['model_type']!r}")
    hidden = shape(meta, tower.last)[0 if tower.by_rows else 1]
    if hidden != text["hidden_size"]:
        message = f"gives vectors of {hidden} entries, where the model's have {text['hidden_size']}"
        raise WeightsError(f"{file.path}: this tower {message}: it belongs to another model")
    return {**text, **tower.read(meta, text), "text_config": text}


def projector(meta: Metadata) -> str:
    if meta.arch != _ARCHITECTURE:
        raise WeightsError(f"{meta.file.path}: holds a model of {shown(meta.arch)}, no tower (mmproj)")
    kind = meta.text("projector_type") or meta.text("vision.projector_type")
    if kind not in _TOWERS:
        known = ", ".join(_TOWERS)
        raise WeightsError(f"{meta.file.path}: a tower with projector {shown(kind)} is not supported: {known} are")
    return kind


def shape(meta: Metadata, name: str) -> tuple[int, ...]:
    """Of a matrix."""
    found = meta.file.tensors.get(name)
    if found is None or len(found.shape) < 2:
        raise WeightsError(f"{meta.file.path}: tensor {name!r} is missing, or no matrix")
    return found.shape


def _is_qwen(kind: str) -> bool:
    return kind.startswith("qwen")


def _sizes(meta: Metadata) -> Config:
    """Of layers, as CLIP and SigLIP name them."""
    hidden, layers = meta.integer("vision.embedding_length"), meta.integer("vision.block_count")
    if not 0 < layers <= MOST_LAYERS:
        raise meta.wrong("clip.vision.block_count", f"between 1 and {MOST_LAYERS}", layers)
    up, down = (shape(meta, f"v.blk.0.{name}.weight")[0] for name in (FFN_UP, FFN_DOWN))
    return {
        "hidden_size": hidden,
        "intermediate_size": down if up == hidden else up,
        "num_hidden_layers": layers,
        "num_attention_heads": meta.integer("vision.attention.head_count"),
        "image_size": meta.integer("vision.image_size"),
        "patch_size": meta.integer("vision.patch_size"),
        "layer_norm_eps": meta.number("vision.attention.layer_norm_epsilon", 1e-6),
    }


def _activation(meta: Metadata, gelu: str) -> str:
    """gelu: which kind the family has"""
    if meta.flag("use_silu"):
        return "silu"
    return gelu if meta.flag("use_gelu") else "quick_gelu"


def _processor(meta: Metadata, **said: Any) -> Config:
    means = {name: meta.numbers(f"vision.{name}") for name in ("image_mean", "image_std")}
    found = {name: value for name, value in (means | said).items() if value is not None}
    return found | {"file": str(meta.file.path)}


def _square(side: int) -> Config:
    return {"height": side, "width": side}


def _llava(meta: Metadata, text: Config) -> Config:
    """Files without layers of features have as many layers as are used."""
    sizes, clip = _sizes(meta), "v.class_embd" in meta.file.tensors
    image, pinpoints = sizes["image_size"], meta.numbers("vision.image_grid_pinpoints")
    used = meta.numbers("vision.feature_layer") or [sizes["num_hidden_layers"]]
    if len(used) != 1:
        raise WeightsError(f"{meta.file.path}: a tower with features of several layers is not supported")
    tiles = bool(pinpoints) and meta.text("vision.mm_patch_merge_type") == "spatial_unpad"
    name, gelu = ("clip_vision_model", "gelu") if clip else ("siglip_vision_model", "gelu_pytorch_tanh")
    pixels = {"size": {"shortest_edge": image}, "crop_size": _square(image)} if clip else {"size": _square(image)}
    config = {
        "architectures": ["LlavaNextForConditionalGeneration" if tiles else "LlavaForConditionalGeneration"],
        "model_type": "llava_next" if tiles else "llava",
        "vision_config": {**sizes, "model_type": name, "hidden_act": _activation(meta, gelu)},
        "vision_feature_layer": int(used[0]),
        "vision_feature_select_strategy": "default" if clip else "full",
        PROCESSOR_FIELD: _processor(meta, **pixels, **(_SQUARE_CUT if clip else {})),
    }
    if not tiles or pinpoints is None:
        return config
    return config | {"image_grid_pinpoints": [pinpoints[at : at + 2] for at in range(0, len(pinpoints), 2)]}


def _idefics3(meta: Metadata, text: Config) -> Config:
    sizes = _sizes(meta)
    image, joined = sizes["image_size"], shape(meta, "mm.model.fc.weight")[1]
    longest = meta.integer("vision.preproc_image_size", _IDEFICS_TILES * image)
    pixels = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": image}}
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "vision_config": {**sizes, "hidden_act": _activation(meta, "gelu_pytorch_tanh")},
        "scale_factor": isqrt(max(joined // max(sizes["hidden_size"], 1), 1)),
        PROCESSOR_FIELD: _processor(meta, **pixels),
    }


def _gemma3(meta: Metadata, text: Config) -> Config:
    sizes = _sizes(meta)
    square = max(meta.integer("vision.projector.scale_factor", _GEMMA_SQUARE), 1)
    side = sizes["image_size"] // max(sizes["patch_size"], 1) // square
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "vision_config": {
            **sizes,
            "model_type": "siglip_vision_model",
            "hidden_act": _activation(meta, "gelu_pytorch_tanh"),
        },
        "mm_tokens_per_image": side**2,
        PROCESSOR_FIELD: _processor(meta, size=_square(sizes["image_size"])),
    }


def _qwen_vl(meta: Metadata, text: Config, windows: bool) -> Config:
    sizes = _sizes(meta)
    patch, merge = sizes["patch_size"], meta.integer("vision.spatial_merge_size", 2)
    vision = {
        "depth": sizes["num_hidden_layers"],
        "num_heads": sizes["num_attention_heads"],
        "patch_size": patch,
        "spatial_merge_size": merge,
        "hidden_act": _activation(meta, "gelu"),
    }
    if windows:
        every = max(meta.integer("vision.n_wa_pattern"), 1)
        vision |= {
            "hidden_size": sizes["hidden_size"],
            "intermediate_size": sizes["intermediate_size"],
            "window_size": meta.integer("vision.window_size", 112),
            "fullatt_block_indexes": [*range(every - 1, vision["depth"], every)],
            "tokens_per_second": _QWEN_TOKENS_PER_SECOND,
        }
    else:
        ratio = sizes["intermediate_size"] / max(sizes["hidden_size"], 1)
        vision |= {"embed_dim": sizes["hidden_size"], "mlp_ratio": ratio}
    least, most = (meta.integer(f"vision.image_{name}_pixels", 0) for name in ("min", "max"))
    named = {"shortest_edge": least, "longest_edge": most} if least and most else _QWEN_SIZES
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration" if windows else "Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl" if windows else "qwen2_vl",
        "vision_config": vision,
        "rope_scaling": {"type": "mrope", "mrope_section": text[SECTIONS_FIELD]},
        PROCESSOR_FIELD: _processor(meta, size=named),
    }


def _qwen2_vl(meta: Metadata, text: Config) -> Config:
    return _qwen_vl(meta, text, windows=False)


def _qwen25_vl(meta: Metadata, text: Config) -> Config:
    return _qwen_vl(meta, text, windows=True)


_TOWERS: Mapping[str, _Tower] = {  # by `clip.projector_type`
    "mlp": _Tower(_llava, ("llama", "mistral", "qwen2"), "mm.2.weight"),
    "idefics3": _Tower(_idefics3, ("llama",), "mm.model.fc.weight"),
    "gemma3": _Tower(_gemma3, ("gemma3_text",), "mm.input_projection.weight", by_rows=False),
    "qwen2vl_merger": _Tower(_qwen2_vl, ("qwen2",), "mm.2.weight"),
    "qwen2.5vl_merger": _Tower(_qwen25_vl, ("qwen2",), "mm.2.weight"),
}
