"""GGUF metadata told in the words of a Hugging Face `config.json`, with the defaults of the HF config classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadence.core.errors import WeightsError
from cadence.core.model.architectures import MOST_LAYERS, unsupported
from cadence.gguf.decoder_config import DECODER_FAMILIES
from cadence.gguf.decoder_metadata import experts, layer_types, rope_decoder
from cadence.gguf.file import GGUFFile
from cadence.gguf.metadata import Metadata
from cadence.gguf.state_config import STATE_FAMILIES, STATES_WITH_EXPERTS

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62  # these two alone scale queries by hidden_size / heads
SECTIONS_FIELD = "gguf_rope_sections"  # of a language model whose positions have axes, beside a tower
POOLING_FIELD = "gguf_pooling"
FIRST_POSITION_FIELD = "gguf_first_position"  # rows of the table of positions that come first unused
_POOLINGS = {1: "mean", 2: "cls", 3: "last"}
_RANK = 4  # the pooling of a model that scores pairs of texts: its head reads the first token
_SCORES = "cls.output.weight"  # the last map of a head that scores texts
_GEMMA3_LOCAL_ROPE_BASE = 10_000.0  # files before `rope.freq_base_swa` do not say it


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """What `config.json` beside this model's unquantised weights would say."""
    meta = Metadata(file)
    if meta.arch not in _FAMILIES:
        raise WeightsError(f"{file.path}: GGUF {unsupported(str(meta.arch)[:64], _FAMILIES)}")
    parts = file.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise WeightsError(f"{file.path}: is one part of a split GGUF file; join the parts with gguf-split --merge")
    if meta.integer("expert_count", 0) and meta.arch not in _WITH_EXPERTS:
        known = ", ".join(_WITH_EXPERTS)
        raise WeightsError(f"{file.path}: experts are not read from GGUF files of {meta.arch}; they are from {known}")
    layers = meta.integer("block_count")
    if not 0 < layers <= MOST_LAYERS:
        raise WeightsError(f"{file.path}: block_count is {layers}; it must lie between 1 and {MOST_LAYERS}")
    config = _FAMILIES[meta.arch](meta) | _vocabulary(meta) | _pooling(meta)
    shape, hidden = file.tensors["token_embd.weight"].shape, meta.integer("embedding_length")
    if shape[1:] != (hidden,):
        raise WeightsError(f"{file.path}: token_embd.weight is {list(shape)} where embedding_length is {hidden}")
    return config


def _pooling(meta: Metadata) -> dict[str, Any]:
    """How a model that was made for embeddings makes one: `POOLING_FIELD`, which no config.json has."""
    kind = meta.integer("pooling_type", 0)
    if kind == 0 or (kind == _RANK and meta.has_tensor(_SCORES)):
        return {}
    if kind not in _POOLINGS:
        known = f"0 to 3 (none, mean, cls, last), or 4 (rank) with a tensor {_SCORES!r}"
        raise meta.wrong(f"{meta.arch}.pooling_type", known, kind)
    return {POOLING_FIELD: _POOLINGS[kind]}


def _vocabulary(meta: Metadata) -> dict[str, Any]:
    embedding = meta.file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(f"{meta.file.path}: tensor 'token_embd.weight' is missing")
    special = meta.file.metadata
    ends = [special.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": not meta.has_tensor("output.weight"),
        "bos_token_id": special.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [end for end in ends if end is not None],
        "pad_token_id": special.get("tokenizer.ggml.padding_token_id"),
    }


def _llama(meta: Metadata) -> dict[str, Any]:
    """Mistral and Mixtral are stored as Llama; a window and experts tell them apart (without a window Mistral and Llama
    are the same model)."""
    window = meta.integer("attention.sliding_window", 0)
    if meta.integer("expert_count", 0):
        count, taken = experts(meta)
        own = {"num_local_experts": count, "num_experts_per_tok": taken, "sliding_window": window or None}
        return rope_decoder(meta, "MixtralForCausalLM", "mixtral") | own
    if window:
        return rope_decoder(meta, "MistralForCausalLM", "mistral") | {"sliding_window": window}
    return rope_decoder(meta, "LlamaForCausalLM", "llama") | {"mlp_bias": meta.has_tensor("blk.0.ffn_up.bias")}


def _qwen2(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "Qwen2ForCausalLM", "qwen2") | {"use_sliding_window": False}


def _qwen2vl(meta: Metadata) -> dict[str, Any]:
    """Without its tower, it reads texts as Qwen2 does: their tokens turn alike along all axes."""
    sections = (meta.numbers("rope.dimension_sections") or [])[:3]
    return _qwen2(meta) | ({SECTIONS_FIELD: sections} if len(sections) == 3 else {})


def _qwen3(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "Qwen3ForCausalLM", "qwen3") | {"use_sliding_window": False}


def _qwen3moe(meta: Metadata) -> dict[str, Any]:
    """Shares of the experts that a token takes add up to 1, which no file says otherwise."""
    count, taken = experts(meta)
    return rope_decoder(meta, "Qwen3MoeForCausalLM", "qwen3_moe") | {
        "use_sliding_window": False,
        "num_experts": count,
        "num_experts_per_tok": taken,
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _smollm3(meta: Metadata) -> dict[str, Any]:
    """Which layers rotate is not in the file: all but every fourth, as in the one model of this kind."""
    config = rope_decoder(meta, "SmolLM3ForCausalLM", "smollm3")
    return config | {"no_rope_layer_interval": 4, "mlp_bias": meta.has_tensor("blk.0.ffn_up.bias")}


def _phi3(meta: Metadata) -> dict[str, Any]:
    config = rope_decoder(meta, "Phi3ForCausalLM", "phi3")
    original = meta.integer("rope.scaling.original_context_length", config["max_position_embeddings"])
    window = meta.integer("attention.sliding_window", 0)
    return config | {"original_max_position_embeddings": original, "sliding_window": window or None}


def _gemma(meta: Metadata, architecture: str, model_type: str, whole_scale_layers: int) -> dict[str, Any]:
    config = rope_decoder(meta, architecture, model_type)
    by_hidden = config["num_hidden_layers"] == whole_scale_layers
    scalar = config["hidden_size"] // config["num_attention_heads"] if by_hidden else config["head_dim"]
    return config | {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": meta.integer("attention.sliding_window", 4096),
    }


def _gemma2(meta: Metadata) -> dict[str, Any]:
    return _gemma(meta, "Gemma2ForCausalLM", "gemma2", _GEMMA2_27B_LAYERS) | {
        "attn_logit_softcapping": meta.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.number("final_logit_softcapping", 30.0),
        "layer_types": layer_types(meta, 2),
    }


def _gemma3(meta: Metadata) -> dict[str, Any]:
    return _gemma(meta, "Gemma3ForCausalLM", "gemma3_text", _GEMMA3_27B_LAYERS) | {
        "rope_theta": meta.number("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": meta.number("rope.freq_base_swa", _GEMMA3_LOCAL_ROPE_BASE),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": meta.number("final_logit_softcapping"),
        "layer_types": layer_types(meta, 6),
    }


def _gpt2(meta: Metadata) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": meta.integer("embedding_length"),
        "n_layer": meta.integer("block_count"),
        "n_head": meta.integer("attention.head_count"),
        "n_inner": meta.integer("feed_forward_length"),
        "n_positions": meta.integer("context_length"),
        "layer_norm_epsilon": meta.number("attention.layer_norm_epsilon", 1e-5),
        "activation_function": "gelu_new",
    }


def _encoder(meta: Metadata, architecture: str, model_type: str) -> dict[str, Any]:
    types = meta.file.tensors.get("token_types.weight")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": meta.integer("embedding_length"),
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": meta.integer("attention.head_count"),
        "intermediate_size": meta.integer("feed_forward_length"),
        "max_position_embeddings": meta.integer("context_length"),
        "layer_norm_eps": meta.number("attention.layer_norm_epsilon", 1e-12),
        "type_vocab_size": 0 if types is None else types.shape[0],
    }


def _bert(meta: Metadata) -> dict[str, Any]:
    """RoBERTa and XLM-R are stored as BERT, without the rows of positions that they never use. Their heads have two
    maps; of BERT's own, files lack the first."""
    if not meta.has_tensor(_SCORES):
        return _encoder(meta, "BertModel", "bert") | {"hidden_act": "gelu"}
    if not meta.has_tensor("cls.weight"):
        message = f"{_SCORES!r} without 'cls.weight': the first map of this model's head is not in the file"
        raise WeightsError(f"{meta.file.path}: {message}")
    return _encoder(meta, "RobertaForSequenceClassification", "roberta") | {
        "hidden_act": "gelu",
        FIRST_POSITION_FIELD: 0,
        "id2label": _labels(meta, meta.file.tensors[_SCORES].shape[0]),
    }


def _labels(meta: Metadata, count: int) -> dict[str, str]:
    """By number; LABEL_0 and so on where the file has no names, or not as many."""
    found = meta.get("classifier.output_labels")
    names = found if isinstance(found, list) and len(found) == count else [f"LABEL_{at}" for at in range(count)]
    return {str(number): str(name)[:256] for number, name in enumerate(names)}


def _nomic_bert(meta: Metadata) -> dict[str, Any]:
    theta = meta.number("rope.freq_base", 1000.0)
    return _encoder(meta, "NomicBertModel", "nomic_bert") | {"hidden_act": "silu", "rope_theta": theta}


_FAMILIES: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen2vl": _qwen2vl,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "smollm3": _smollm3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "bert": _bert,
    "nomic-bert": _nomic_bert,
    **DECODER_FAMILIES,
    **STATE_FAMILIES,
}
_WITH_EXPERTS = ("llama", "qwen3moe", "granitemoe", "llama4", *STATES_WITH_EXPERTS)


def architectures() -> list[str]:
    """What GGUF files call the families that are read from them."""
    return sorted(_FAMILIES)
