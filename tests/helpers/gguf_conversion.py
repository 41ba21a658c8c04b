"""A checkpoint of transformers as a GGUF file: what llama.cpp's converter makes of it. Names are those of the `gguf`
package's own table; what the converter changes in a tensor is told here once more, in other words than the reader's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType
from safetensors.torch import load_file

from tests.helpers.gguf_files import add_metadata
from tests.helpers.gguf_metadata import metadata_of
from tests.helpers.random_blocks import tame_blocks

Config = Mapping[str, Any]
Named = Iterator[tuple[str, torch.Tensor]]  # as a checkpoint has them, or as the `gguf` package knows them

ARCHITECTURES = {
    "BambaForCausalLM": MODEL_ARCH.GRANITE_HYBRID,
    "BloomForCausalLM": MODEL_ARCH.BLOOM,
    "Cohere2ForCausalLM": MODEL_ARCH.COHERE2,
    "CohereForCausalLM": MODEL_ARCH.COMMAND_R,
    "Exaone4ForCausalLM": MODEL_ARCH.EXAONE4,
    "FalconForCausalLM": MODEL_ARCH.FALCON,
    "FalconH1ForCausalLM": MODEL_ARCH.FALCON_H1,
    "FalconMambaForCausalLM": MODEL_ARCH.MAMBA,
    "GPTJForCausalLM": MODEL_ARCH.GPTJ,
    "GPTNeoXForCausalLM": MODEL_ARCH.GPTNEOX,
    "GemmaForCausalLM": MODEL_ARCH.GEMMA,
    "Glm4ForCausalLM": MODEL_ARCH.GLM4,
    "GlmForCausalLM": MODEL_ARCH.CHATGLM,
    "GraniteForCausalLM": MODEL_ARCH.GRANITE,
    "GraniteMoeForCausalLM": MODEL_ARCH.GRANITE_MOE,
    "GraniteMoeHybridForCausalLM": MODEL_ARCH.GRANITE_HYBRID,
    "JambaForCausalLM": MODEL_ARCH.JAMBA,
    "Lfm2ForCausalLM": MODEL_ARCH.LFM2,
    "Llama4ForCausalLM": MODEL_ARCH.LLAMA4,
    "Mamba2ForCausalLM": MODEL_ARCH.MAMBA2,
    "MambaForCausalLM": MODEL_ARCH.MAMBA,
    "MptForCausalLM": MODEL_ARCH.MPT,
    "Olmo2ForCausalLM": MODEL_ARCH.OLMO2,
    "Olmo3ForCausalLM": MODEL_ARCH.OLMO2,
    "PhiForCausalLM": MODEL_ARCH.PHI2,
    "Qwen3NextForCausalLM": MODEL_ARCH.QWEN3NEXT,
    "StableLmForCausalLM": MODEL_ARCH.STABLELM,
    "Starcoder2ForCausalLM": MODEL_ARCH.STARCODER2,
}


def to_gguf(directory: Path, path: Path, kind: str = "F32") -> Path:
    """kind: of matrices whose rows it divides; all else is stored as F32"""
    config = json.loads((directory / "config.json").read_text())
    arch, layers = ARCHITECTURES[config["architectures"][0]], config.get("num_hidden_layers") or config.get("n_layers")
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    for key, value in metadata_of(config, arch).items():
        add_metadata(writer, key, value)
    names = gguf.get_tensor_name_map(arch, layers or config["n_layer"])
    for name, values in _converted(config, arch, load_file(directory / "model.safetensors")):
        found = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        # The package leaves out the ending of the norms that it knows by their whole name, as the converter does.
        assert found is not None, name
        _write(writer, found, values.float().numpy(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write(writer: gguf.GGUFWriter, name: str, values_np: np.ndarray, kind: str) -> None:
    block = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
    matrix = values_np.ndim > 1 and "ssm_conv" not in name and "norm" not in name and "ffn_gate_inp" not in name
    if kind == "F32" or not matrix or values_np.shape[-1] % block:
        writer.add_tensor(name, np.ascontiguousarray(values_np), raw_dtype=GGMLQuantizationType.F32)
        return
    packed_np = quantized(np.ascontiguousarray(values_np), kind, block)
    writer.add_tensor(name, packed_np, raw_dtype=GGMLQuantizationType[kind])


def quantized(values_np: np.ndarray, kind: str, block: int) -> np.ndarray:
    """Of these values; other values about as large, where the package does not quantise to this type."""
    try:
        return gguf.quants.quantize(values_np, GGMLQuantizationType[kind])
    except NotImplementedError:
        blocks_np = tame_blocks(kind, values_np.size // block, float(values_np.std()), values_np.shape[0])
        return blocks_np.reshape(*values_np.shape[:-1], -1)


def _converted(config: Config, arch: MODEL_ARCH, tensors: Mapping[str, torch.Tensor]) -> Named:
    """Each tensor under a name that the package knows, or under the file's own, beginning with "blk."."""
    change = _CHANGES.get(arch, _same)
    for name, values in _stacked(tensors).items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        yield from change(config, name, values)


def _stacked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts of a layer in one tensor, and norms of each head."""
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    alone: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        found = re.fullmatch(r"(.*\.(?:experts|norms))\.(\d+)\.(.*)", name)
        if found is None:
            alone[name] = values
        elif ".norms." in name:
            stacks.setdefault(f"{found[1].removesuffix('.norms')}.{found[3]}", {})[int(found[2])] = values
        else:
            stem = re.sub(r"\.(feed_forward|mlp)\.experts", ".mlp.experts", found[1])
            stacks.setdefault(f"{stem}.{found[3]}", {})[int(found[2])] = values
    return alone | {name: torch.stack([of[at] for at in sorted(of)]) for name, of in stacks.items()}


def _same(config: Config, name: str, values: torch.Tensor) -> Named:
    yield name, values


def _plus_one(config: Config, name: str, values: torch.Tensor) -> Named:
    yield name, values + 1 if name.endswith("norm.weight") else values


def _interleaved(config: Config, name: str, values: torch.Tensor) -> torch.Tensor:
    """Halves of each head of queries and keys become neighbours."""
    part = re.search(r"\.([qk])_proj\.", name)
    if part is None:
        return values
    heads = config["num_attention_heads" if part[1] == "q" else "num_key_value_heads"]
    halves = values.unflatten(0, (heads, 2, -1))
    return halves.transpose(1, 2).flatten(0, 2)


def _granite(config: Config, name: str, values: torch.Tensor) -> Named:
    """Gate and up, which a checkpoint has in one matrix, apart."""
    values = _interleaved(config, name, values)
    layer, inner = f"blk.{_layer(name)}", name.rpartition(".layers.")[2]
    routed = bool(config.get("num_local_experts"))
    if "block_sparse_moe.input_linear" in inner or "shared_mlp.input_linear" in inner:
        end = "_exps" if "block_sparse_moe" in inner else "_shexp" if routed else ""
        gate, up = values.chunk(2, dim=-2)
        yield f"{layer}.ffn_gate{end}.weight", gate
        yield f"{layer}.ffn_up{end}.weight", up
    elif "shared_mlp.output_linear" in inner:
        yield f"{layer}.ffn_down{'_shexp' if routed else ''}.weight", values
    else:
        yield from _mamba2(config, name, values)


def _llama4(config: Config, name: str, values: torch.Tensor) -> Named:
    """Matrices of experts, which a checkpoint has the other way round, gate and up in one."""
    layer = f"blk.{_layer(name)}"
    if name.endswith("experts.gate_up_proj"):
        gate, up = values.transpose(1, 2).chunk(2, dim=1)
        yield f"{layer}.ffn_gate_exps.weight", gate
        yield f"{layer}.ffn_up_exps.weight", up
    elif name.endswith("experts.down_proj"):
        yield f"{layer}.ffn_down_exps.weight", values.transpose(1, 2)
    else:
        yield name, values


def _apart(config: Config, name: str, values: torch.Tensor) -> Named:
    """Queries, keys and values of each head of keys -> all queries, all keys, all values."""
    if "query_key_value" in name:
        heads = config.get("num_attention_heads") or config["n_head"]
        grouped = config["model_type"] == "falcon"
        keys = (config["num_kv_heads"] if config.get("new_decoder_architecture") else 1) if grouped else heads
        by_group = values.unflatten(0, (keys, heads // keys + 2, -1))
        queries, key, value = by_group.split([heads // keys, 1, 1], dim=1)
        values = torch.cat([part.flatten(0, 2) for part in (queries, key, value)])
    yield name.removeprefix("transformer.") if config["model_type"] == "bloom" else name, values


def _mamba(config: Config, name: str, values: torch.Tensor) -> Named:
    if name.endswith(".A_log"):
        values = -values.exp()
    yield name, values.squeeze(1) if "conv1d.weight" in name else values


def _mamba2(config: Config, name: str, values: torch.Tensor) -> Named:
    ((name, values),) = _mamba(config, name, values)
    if name.endswith((".A_log", ".D")):
        values = values[:, None]
    if re.search(r"\.(mixer|mamba)\.norm\.", name):
        values = values.view(config.get("n_groups") or config["mamba_n_groups"], -1)
    yield name.replace(".dt_bias", ".dt_proj.bias"), values


def _falcon_h1(config: Config, name: str, values: torch.Tensor) -> Named:
    """Factors are multiplied into the matrices."""
    mlp, into, width = config["mlp_multipliers"], config["attention_in_multiplier"], config["mamba_d_ssm"]
    factors = {
        "down_proj": mlp[1],
        "gate_proj": mlp[0],
        "k_proj": config["key_multiplier"] * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    values = values * factors.get(name.split(".")[-2], 1.0)
    if "mamba.in_proj" in name:
        states = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [width, width, states, states, len(values) - 2 * width - 2 * states]
        parts = zip(values.split(sizes), config["ssm_multipliers"], strict=True)
        values = torch.cat([part * factor for part, factor in parts])
    yield from _mamba2(config, name, values)


def _lfm2(config: Config, name: str, values: torch.Tensor) -> Named:
    yield name, values.squeeze(1) if "conv.conv" in name else values


def _qwen3_next(config: Config, name: str, values: torch.Tensor) -> Named:
    if "in_proj_qkvz" in name:
        keys, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
        shared = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        parts = values.unflatten(0, (keys, -1)).split([width, width, shared, shared], dim=1)
        *qkv, gate = (part.flatten(0, 1) for part in parts)
        yield f"blk.{_layer(name)}.attn_qkv.weight", torch.cat(qkv)
        yield f"blk.{_layer(name)}.attn_gate.weight", gate
        return
    if name.endswith("norm.weight") and "linear_attn" not in name:
        values = values + 1
    if "shared_expert_gate" in name:
        values = values[0]
    ((name, values),) = _mamba(config, name, values)
    yield name.replace(".dt_bias", ".dt_proj.bias"), values


def _layer(name: str) -> str:
    found = re.search(r"\.layers\.(\d+)\.", name)
    return found[1] if found else ""


_CHANGES: dict[MODEL_ARCH, Callable[[Config, str, torch.Tensor], Named]] = {
    MODEL_ARCH.BLOOM: _apart,
    MODEL_ARCH.FALCON: _apart,
    MODEL_ARCH.FALCON_H1: _falcon_h1,
    MODEL_ARCH.GEMMA: _plus_one,
    MODEL_ARCH.GPTNEOX: _apart,
    MODEL_ARCH.GRANITE: _granite,
    MODEL_ARCH.GRANITE_HYBRID: _granite,
    MODEL_ARCH.GRANITE_MOE: _granite,
    MODEL_ARCH.JAMBA: _mamba,
    MODEL_ARCH.LFM2: _lfm2,
    MODEL_ARCH.LLAMA4: _llama4,
    MODEL_ARCH.MAMBA: _mamba,
    MODEL_ARCH.MAMBA2: _mamba2,
    MODEL_ARCH.QWEN3NEXT: _qwen3_next,
}
