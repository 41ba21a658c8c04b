"""Tiny models in the formats of quantised checkpoints, and beside each the same with its dequantised values.

Formats of compressed-tensors are written and read back by the library of that name; the others by plain definitions of
their own here, one integer or number at a time where that says it best.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.helpers import quantized_writers as writers
from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, MAX_LEN, PAD, VOCAB, randomise, save_tokenizer

Written = tuple[dict[str, torch.Tensor], torch.Tensor]  # tensors by what follows the module's name, values
GPTQ = {"quant_method": "gptq", "desc_act": False, "sym": True, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "llm_int8_skip_modules": None}


@dataclass(frozen=True)
class Form:
    config: dict[str, Any]  # quantization_config
    write: Callable[[torch.Tensor], Written]  # of a matrix
    dtype: torch.dtype = torch.bfloat16  # of all else
    head: bool = False  # whether the head and the embedding are quantised as well
    exact: bool = True  # whether the packed kernels hold its numbers


def _ct(head: bool = False, exact: bool = True, inputs: dict[str, Any] | None = None, **weights: Any) -> Form:
    args = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True, **weights}
    dtype = args.pop("scale_in", torch.bfloat16)
    config = writers.compressed_config(args, head, inputs)
    return Form(config, partial(writers.compressed, args=args, dtype=dtype), head=head, exact=exact)


_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
_FP8 = {"num_bits": 8, "type": "float"}
FORMS: dict[str, Form] = {
    "W4A16 group 128": _ct(group_size=128),
    "W4A16 group 32, all of it": _ct(group_size=32, head=True),
    "W4A16 channel": _ct(strategy="channel"),
    "W4A16 asymmetric": _ct(group_size=64, symmetric=False),
    "W8A16 group 128": _ct(num_bits=8, group_size=128),
    "W8A16 channel, float32 scales": _ct(num_bits=8, strategy="channel", scale_in=torch.float32),
    "W8A16 asymmetric": _ct(num_bits=8, group_size=64, symmetric=False),
    "INT8 W8A8": _ct(num_bits=8, strategy="channel", scale_in=torch.float32, inputs=_TOKEN, format="int-quantized"),
    "FP8 tensor": _ct(strategy="tensor", scale_in=torch.float32, **_FP8),
    "FP8 channel": _ct(strategy="channel", **_FP8),
    "FP8 block": _ct(strategy="block", block_structure=[128, 128], scale_in=torch.float32, **_FP8),
    "NVFP4": _ct(type="float", strategy="tensor_group", group_size=16),
    "MXFP4": _ct(type="float", strategy="group", group_size=32),
    "GPTQ 4 bits": Form(GPTQ | {"bits": 4}, partial(writers.gptq, bits=4, group=32, symmetric=True), torch.float16),
    "GPTQ 4 bits, asymmetric, version 2": Form(
        GPTQ | {"bits": 4, "sym": False, "checkpoint_format": "gptq_v2"},
        partial(writers.gptq, bits=4, group=32, offset=0),
        torch.float16,
    ),
    "GPTQ 4 bits, by activation": Form(
        GPTQ | {"bits": 4, "desc_act": True},
        partial(writers.gptq, bits=4, group=32, shuffled=True),
        torch.float16,
    ),
    "GPTQ 8 bits": Form(GPTQ | {"bits": 8}, partial(writers.gptq, bits=8, group=32, symmetric=True), torch.float16),
    "AWQ": Form(AWQ | {"group_size": 64}, partial(writers.awq, group=64), torch.float16),
    "fp8 block 128": Form(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        writers.fp8_blocks,
    ),
    "nf4": Form(BNB, partial(writers.bnb4, kind="nf4", nested=False)),
    "nf4, twice": Form(BNB, partial(writers.bnb4, kind="nf4", nested=True)),
    "fp4": Form(BNB, partial(writers.bnb4, kind="fp4", nested=False)),
    "bnb int8": Form(BNB | {"load_in_4bit": False, "load_in_8bit": True}, writers.bnb8, exact=False),
}


@same_every_time
def make_quantized(form: str, directory: Path, family: str = "llama", **changes: Any) -> Path:
    """-> directory/quantised; directory/plain has the values that it stands for, in float32. Of a family with experts
    their matrices are quantised, and routers are not."""
    plain, quantised, found = directory / "plain", directory / "quantised", FORMS[form]
    _save_plain(plain, family, changes)
    tensors, values = {}, {}
    for name, tensor in _tensors(plain).items():
        module = name.removesuffix(".weight")
        if tensor.dim() == 2 and (found.head or "_proj" in name or ".experts." in name):
            parts, exact = found.write(tensor)
            values[name] = exact.to(found.dtype) if exact.dtype is torch.float32 else exact
            tensors.update({f"{module}.{part}": each.contiguous() for part, each in parts.items()})
        else:
            tensors[name] = tensor.to(found.dtype)
            values[name] = tensors[name]
    shutil.copytree(plain, quantised)
    config = json.loads((plain / "config.json").read_text())
    kind = str(found.dtype).removeprefix("torch.")
    (quantised / "config.json").write_text(json.dumps(config | {"dtype": kind, "quantization_config": found.config}))
    save_file(tensors, quantised / "model.safetensors", {"format": "pt"})
    save_file(
        {name: each.float().contiguous() for name, each in values.items()},
        plain / "model.safetensors",
        {"format": "pt"},
    )
    return quantised


def _save_plain(directory: Path, family: str, changes: dict[str, Any]) -> None:
    sizes = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": MAX_LEN}
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "tie_word_embeddings": False}
    model = _MODELS[family](sizes | heads | ids | changes).eval()
    randomise(model, 0.1, 0.08)
    model.save_pretrained(directory)
    save_tokenizer(directory)


def _llama(config: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**config))


def _mixtral(config: dict[str, Any]) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**{"num_local_experts": 4, "num_experts_per_tok": 2} | config))


def _qwen3_moe(config: dict[str, Any]) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 128, "head_dim": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**experts | {"norm_topk_prob": True} | config))


def _mamba2(config: dict[str, Any]) -> Any:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    mixer = {"num_heads": 16, "head_dim": 16, "state_size": 32, "n_groups": 1, "chunk_size": 32}
    ours = ("vocab_size", "hidden_size", "num_hidden_layers", "bos_token_id", "eos_token_id", "pad_token_id")
    return Mamba2ForCausalLM(Mamba2Config(**mixer, **{name: config[name] for name in ours}, tie_word_embeddings=False))


def _bamba(config: dict[str, Any]) -> Any:
    from transformers import BambaConfig, BambaForCausalLM

    mixer = {"mamba_n_heads": 16, "mamba_d_state": 32, "mamba_chunk_size": 32, "attn_layer_indices": [1]}
    return BambaForCausalLM(BambaConfig(**mixer | config))


_MODELS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "mamba2": _mamba2,
    "bamba": _bamba,
}


def _tensors(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def add_scales(folder: Path, scales: dict[int, tuple[float, float]]) -> None:
    """Of the KV cache: keys and values of a layer, as compressed-tensors names them."""
    tensors = load_file(folder / "model.safetensors")
    for layer, both in scales.items():
        for name, value in zip("kv", both, strict=True):
            tensors[f"model.layers.{layer}.self_attn.{name}_scale"] = torch.tensor([value])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
