"""A GGUF file of each family gives back the Hugging Face model it was made from: its config and every tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.reference import find_model
from cadence.core.errors import WeightsError
from cadence.gguf import open_weights
from cadence.gguf.file import GGUFFile
from tests.helpers.gguf_files import decoder_metadata, write_gguf
from tests.helpers.smollm2 import read_by_transformers, smollm2_path

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ATTENTION = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
COMMON = {
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PHI3 = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
GPT2 = {
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
GPT2_TOP = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"}


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def to_gguf_name(name: str, inner: dict[str, str], top: dict[str, str]) -> str:
    stem, kind = name.removeprefix("model.").removeprefix("transformer.").rsplit(".", 1)
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, layer, rest = stem.split(".", 2)
    return f"blk.{layer}.{inner[rest]}.{kind}"


def interleaved(weight_np: np.ndarray, heads: int) -> np.ndarray:
    """Rows x0 x1 ... y0 y1 ... of each head become x0 y0 x1 y1 ..., as llama.cpp wants them."""
    out_np = np.empty_like(weight_np)
    size = len(weight_np) // heads
    for head in range(heads):
        rows_np = weight_np[head * size : (head + 1) * size]
        out_np[head * size : (head + 1) * size : 2] = rows_np[: size // 2]
        out_np[head * size + 1 : (head + 1) * size : 2] = rows_np[size // 2 :]
    return out_np


def convert(model: Any, path: Path, arch: str, names: dict[str, str], metadata: dict[str, Any]) -> Path:
    """What llama.cpp's converter makes of `model`."""
    config, top = model.config, GPT2_TOP if arch == "gpt2" else TOP
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value_np = tensor.numpy()
        if arch in ("llama", "smollm3") and "q_proj" in name:
            value_np = interleaved(value_np, config.num_attention_heads)
        if arch in ("llama", "smollm3") and "k_proj" in name:
            value_np = interleaved(value_np, config.num_key_value_heads)
        if arch.startswith("gemma") and "norm" in name:
            value_np = value_np + np.float32(1.0)
        if arch == "gpt2" and ".c_" in name:
            value_np = value_np.T
        tensors[to_gguf_name(name, names, top)] = value_np
    return write_gguf(path, arch, metadata, tensors)


def check(model: Any, path: Path, tolerance: float = 0.0) -> HFConfig:
    hf = load_hf_config(find_model(str(path)))
    weights = open_weights(path, hf.raw)
    expected = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight" or not hf["tie_word_embeddings"]}
    assert set(weights.names()) == set(expected)
    for name, tensor in expected.items():
        assert weights.shape(name) == tuple(tensor.shape)
        torch.testing.assert_close(weights.load(name), tensor, rtol=0.0, atol=tolerance)
    return hf


def assert_config(hf: HFConfig, config: Any) -> None:
    """Every key that both have agrees; `rope_parameters` up to defaults spelled out."""
    theirs = config.to_dict()
    assert hf.architecture == transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__
    for key in set(hf.raw) & set(theirs) - {"architectures", "eos_token_id", "rope_parameters", "rms_norm_eps"}:
        assert hf.raw[key] == theirs[key], key
    assert hf["rms_norm_eps"] == pytest.approx(config.rms_norm_eps)
    assert hf.eos_token_ids == (2,)


def test_llama(tmp_path: Path) -> None:
    model = random_model(transformers.LlamaConfig(**SIZES, attention_bias=True, rope_parameters={"rope_theta": 5e5}))
    path = convert(model, tmp_path / "m.gguf", "llama", ATTENTION | COMMON, decoder_metadata(model.config))
    hf = check(model, path)
    assert_config(hf, model.config)
    assert hf["rope_theta"] == 5e5


def test_mistral_is_told_by_its_window(tmp_path: Path) -> None:
    model = random_model(transformers.MistralConfig(**SIZES, sliding_window=16, head_dim=16))
    metadata = decoder_metadata(model.config) | {".attention.sliding_window": 16}
    path = convert(model, tmp_path / "m.gguf", "llama", ATTENTION | COMMON, metadata)
    assert_config(check(model, path), model.config)


def test_qwen2(tmp_path: Path) -> None:
    model = random_model(transformers.Qwen2Config(**SIZES))
    path = convert(model, tmp_path / "m.gguf", "qwen2", ATTENTION | COMMON, decoder_metadata(model.config))
    assert_config(check(model, path), model.config)


def test_qwen3(tmp_path: Path) -> None:
    model = random_model(transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True))
    path = convert(model, tmp_path / "m.gguf", "qwen3", ATTENTION | QK_NORMS | COMMON, decoder_metadata(model.config))
    assert_config(check(model, path), model.config)


EXPERTS = {"num_experts_per_tok": 2, "head_dim": 16}
FUSED = {"mlp.gate": "ffn_gate_inp", "mlp.experts": "ffn"}  # as transformers has experts


def convert_experts(model: Any, path: Path, arch: str, names: dict[str, str]) -> Path:
    """As `convert`, of a model whose experts transformers keeps as `gate_up_proj` and `down_proj`."""
    config, tensors = model.config, {}
    for name, tensor in model.state_dict().items():
        value_np, rest = tensor.numpy(), name.rsplit(".", 1)[-1]
        if arch == "llama" and rest == "weight" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            value_np = interleaved(value_np, heads)
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        if rest == "gate_up_proj":
            half = value_np.shape[1] // 2
            tensors[f"blk.{layer}.ffn_gate_exps.weight"] = value_np[:, :half]
            tensors[f"blk.{layer}.ffn_up_exps.weight"] = value_np[:, half:]
        elif rest == "down_proj":
            tensors[f"blk.{layer}.ffn_down_exps.weight"] = value_np
        else:
            tensors[to_gguf_name(name, names, TOP)] = value_np
    count = len(model.model.layers[0].mlp.experts.down_proj)
    sizes = {".expert_count": count, ".expert_used_count": config.num_experts_per_tok}
    width = {".expert_feed_forward_length": getattr(config, "moe_intermediate_size", config.intermediate_size)}
    return write_gguf(path, arch, decoder_metadata(config) | sizes | width, tensors)


def check_experts(model: Any, path: Path, saved: Path) -> None:
    """saved: what transformers writes of it"""
    model.save_pretrained(saved)
    hf = load_hf_config(find_model(str(path)))
    weights, expected = open_weights(path, hf.raw), load_file(saved / "model.safetensors")
    assert set(weights.names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(weights.load(name), tensor), name
        if ".experts." in name:
            kind, raw = weights.blocks(name, False) or ("", torch.empty(0))
            assert kind == "F32" and torch.equal(raw.view(torch.float32).view(tensor.shape), tensor)
    assert_config(hf, model.config)


def test_mixtral(tmp_path: Path) -> None:
    model = random_model(transformers.MixtralConfig(**SIZES, **EXPERTS, num_local_experts=3))
    path = convert_experts(model, tmp_path / "m.gguf", "llama", ATTENTION | COMMON | FUSED)
    check_experts(model, path, tmp_path / "saved")


def test_qwen3_moe(tmp_path: Path) -> None:
    sizes = {"num_experts": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}
    model = random_model(transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, **sizes))
    path = convert_experts(model, tmp_path / "m.gguf", "qwen3moe", ATTENTION | QK_NORMS | COMMON | FUSED)
    check_experts(model, path, tmp_path / "saved")
    hf = load_hf_config(find_model(str(path)))
    with pytest.raises(WeightsError, match=r"ffn_\w+_exps.weight' has shape \[3, .*\[4, rows, columns\]"):
        open_weights(path, hf.raw | {"num_experts": 4})


def test_smollm3(tmp_path: Path) -> None:
    model = random_model(transformers.SmolLM3Config(**SIZES | {"num_hidden_layers": 5}))
    path = convert(model, tmp_path / "m.gguf", "smollm3", ATTENTION | COMMON, decoder_metadata(model.config))
    assert_config(check(model, path), model.config)


def test_gemma2(tmp_path: Path) -> None:
    config = transformers.Gemma2Config(**SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=8)
    model = random_model(config)
    metadata = decoder_metadata(config) | {".attention.sliding_window": 8}
    metadata |= {".attn_logit_softcapping": 50.0, ".final_logit_softcapping": 30.0}
    path = convert(model, tmp_path / "m.gguf", "gemma2", ATTENTION | COMMON | GEMMA_NORMS, metadata)
    assert_config(check(model, path, tolerance=1e-6), config)


def test_gemma3(tmp_path: Path) -> None:
    sizes = SIZES | {"num_hidden_layers": 7}
    config = transformers.Gemma3TextConfig(**sizes, head_dim=16, query_pre_attn_scalar=16, sliding_window=8)
    model = random_model(config)
    metadata = decoder_metadata(config) | {".attention.sliding_window": 8}
    path = convert(model, tmp_path / "m.gguf", "gemma3", ATTENTION | QK_NORMS | COMMON | GEMMA_NORMS, metadata)
    hf = check(model, path, tolerance=1e-6)
    assert_config(hf, config)
    assert hf["rope_parameters"]["sliding_attention"] == config.rope_parameters["sliding_attention"]
    assert hf["rope_parameters"]["full_attention"]["rope_theta"] == 1e6


def test_phi3(tmp_path: Path) -> None:
    config = transformers.Phi3Config(**SIZES, original_max_position_embeddings=64)
    model = random_model(config)
    path = convert(model, tmp_path / "m.gguf", "phi3", COMMON | PHI3, decoder_metadata(config))
    assert_config(check(model, path), config)


def test_gpt2(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=40)
    model = random_model(config)
    metadata = {".block_count": 2, ".context_length": 64, ".embedding_length": 32, ".feed_forward_length": 40}
    metadata |= {".attention.head_count": 4, ".attention.layer_norm_epsilon": 1e-5}
    hf = check(model, convert(model, tmp_path / "m.gguf", "gpt2", GPT2, metadata))
    for key in ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner", "layer_norm_epsilon"):
        assert hf[key] == getattr(config, key)
    assert (hf.architecture, hf["activation_function"]) == ("GPT2LMHeadModel", config.activation_function)


def first_layers(source: Path, target: Path, count: int) -> Path:
    """`source` cut down to `count` layers and no tokenizer; what is left keeps its quantised bytes."""
    file = GGUFFile(source)
    writer = gguf.GGUFWriter(target, "llama")
    for key, value in file.metadata.items():
        if key.startswith("llama.") and key != "llama.block_count":
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    writer.add_uint32("llama.block_count", count)
    for name, token_id in (("bos", 1), ("eos", 2), ("padding", 2)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    for name, tensor in file.tensors.items():
        if not name.startswith("blk.") or int(name.split(".")[1]) < count:
            raw_np = file.data(tensor).reshape(*tensor.shape[:-1], -1)
            raw_np = raw_np.view(np.float32) if tensor.type.name == "F32" else raw_np
            writer.add_tensor(name, raw_np, raw_dtype=gguf.GGMLQuantizationType[tensor.type.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_smollm2_equals_transformers_reader(tmp_path: Path) -> None:
    path = first_layers(smollm2_path(), tmp_path / "m.gguf", 2)
    config, theirs = read_by_transformers(path)
    hf = load_hf_config(find_model(str(path)))
    assert_config(hf, config)
    weights = open_weights(path, hf.raw)
    assert set(weights.names()) == set(theirs)
    assert len(theirs) == 2 * 9 + 2
    for name in weights.names():
        assert torch.equal(weights.load(name), theirs[name]), name


def with_tensor(tmp_path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> tuple[Path, HFConfig]:
    config = transformers.LlamaConfig(**SIZES)
    tensors = {"token_embd.weight": np.zeros((48, 32), np.float32)}
    change(tensors)
    path = write_gguf(tmp_path / "m.gguf", "llama", decoder_metadata(config), tensors)
    return path, load_hf_config(find_model(str(path)))


def test_rotary_tables_are_not_weights_and_strangers_keep_their_names(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["rope_freqs.weight"] = np.ones(4, np.float32)
        tensors["blk.0.something.weight"] = np.ones(4, np.float32)

    path, hf = with_tensor(tmp_path, change)
    assert open_weights(path, hf.raw).names() == ["model.embed_tokens.weight", "blk.0.something.weight"]


def test_missing_and_ill_shaped_tensors_are_named(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.0.attn_q.weight"] = np.ones((30, 32), np.float32)

    path, hf = with_tensor(tmp_path, change)
    weights = open_weights(path, hf.raw)
    with pytest.raises(WeightsError, match=r"m\.gguf.*'model\.norm\.weight' is missing"):
        weights.load("model.norm.weight")
    with pytest.raises(WeightsError, match=r"'blk\.0\.attn_q\.weight' has 30 rows"):
        weights.load("model.layers.0.self_attn.q_proj.weight")
