"""Tiny random heads for the tiny target `llama`, saved in the layouts users have, and the same heads in plain torch.

The plain ones are written from the papers' equations: each keeps no keys and computes a whole sequence of
(token, hidden state) pairs at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from tests.helpers.tiny_models import MAX_LEN, VOCAB

HIDDEN, INNER, HEADS, KV_HEADS, SIZE, EPS, THETA = 64, 96, 4, 2, 16, 1e-6, 10_000.0
FREQUENCIES = THETA ** (-torch.arange(0, SIZE, 2) / SIZE)
DRAFT_VOCAB = 100

Tensors = dict[str, torch.Tensor]
Pairs = tuple[torch.Tensor, torch.Tensor]  # ids [T], hidden [T, H]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Ends:
    """The target's, or a head's own."""

    embed: torch.Tensor  # [vocab, H]
    lm_head: torch.Tensor  # [vocab, H]


def random(shape: tuple[int, ...], seed: int, spread: float = 0.15, around: float = 0.0) -> torch.Tensor:
    return around + spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_tensors(prefix: str, inputs: int = HIDDEN, input_norm: bool = True) -> Tensors:
    """inputs: of queries, keys and values."""
    shapes = {
        "self_attn.q_proj": (HEADS * SIZE, inputs),
        "self_attn.k_proj": (KV_HEADS * SIZE, inputs),
        "self_attn.v_proj": (KV_HEADS * SIZE, inputs),
        "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    tensors = {f"{prefix}{name}.weight": random(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    norms = ["post_attention_layernorm"] + ["input_layernorm"] * input_norm
    return tensors | {f"{prefix}{name}.weight": norm_tensor(40 + i) for i, name in enumerate(norms)}


def norm_tensor(seed: int) -> torch.Tensor:
    return random((HIDDEN,), seed, around=1.0)


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def angles_of(length: int) -> torch.Tensor:
    """[length, SIZE / 2] by which entries of tokens at positions 0, 1, … turn"""
    return torch.arange(length)[:, None] * FREQUENCIES


def attention(qkv: list[torch.Tensor]) -> torch.Tensor:
    """q [T, HEADS * SIZE], k and v [T, KV_HEADS * SIZE], positions 0, 1, … -> [T, HEADS * SIZE]"""
    length = len(qkv[0])
    q, k, v = (part.view(length, -1, SIZE).transpose(0, 1) for part in qkv)
    angles = angles_of(length)
    cos, sin = angles.cos(), angles.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        one, two = x.chunk(2, dim=-1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=0) for part in (turned(k), v))
    scores = turned(q) @ k.transpose(1, 2) / SIZE**0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)


def decoder_layer(w: Tensors, prefix: str, x: torch.Tensor, qkv_input: torch.Tensor) -> torch.Tensor:
    """x: the residual; qkv_input: what attention sees -> the residual after the layer"""
    w = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
    attended = attention([qkv_input @ w[f"self_attn.{part}_proj.weight"].T for part in "qkv"])
    x = x + attended @ w["self_attn.o_proj.weight"].T
    inner = rms(x, w["post_attention_layernorm.weight"])
    gated = F.silu(inner @ w["mlp.gate_proj.weight"].T) * (inner @ w["mlp.up_proj.weight"].T)
    return x + gated @ w["mlp.down_proj.weight"].T


Oracle = Callable[[Pairs, int], tuple[torch.Tensor, torch.Tensor]]  # (pairs, draft) -> (logits, states fed next)


def write(directory: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / "model.safetensors")
    return directory


def eagle(target: Ends, *, own: bool = True, bias: bool = True) -> tuple[Tensors, Oracle]:
    """As EAGLE's authors publish it; `own`: with an embedding in it."""
    w = layer_tensors("layers.0.", input_norm=False) | {"fc.weight": random((HIDDEN, 2 * HIDDEN), 50)}
    w |= {"fc.bias": random((HIDDEN,), 51)} if bias else {}
    w |= {"embed_tokens.weight": random((VOCAB, HIDDEN), 52)} if own else {}
    embed = w.get("embed_tokens.weight", target.embed)

    def oracle(pairs: Pairs, draft: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, hidden = pairs
        x = torch.cat([embed[ids], hidden], dim=-1) @ w["fc.weight"].T + w.get("fc.bias", torch.zeros(HIDDEN))
        x = decoder_layer(w, "layers.0.", x, x)
        return x @ target.lm_head.T, x

    return w, oracle


def eagle_speculators(target: Ends) -> tuple[Tensors, dict[str, Any], Oracle]:
    """With all the norms that the layout knows."""
    w = layer_tensors("transformer.") | {"fusion_fc.weight": random((HIDDEN, 2 * HIDDEN), 50)}
    w |= {"embedding_layernorm.weight": norm_tensor(53), "pre_lm_head_layernorm.weight": norm_tensor(54)}

    def oracle(pairs: Pairs, draft: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, hidden = pairs
        x = torch.cat([rms(target.embed[ids], w["embedding_layernorm.weight"]), hidden], dim=-1)
        x = x @ w["fusion_fc.weight"].T
        x = decoder_layer(w, "transformer.", x, rms(x, w["transformer.input_layernorm.weight"]))
        return rms(x, w["pre_lm_head_layernorm.weight"]) @ target.lm_head.T, x

    layer = {key: value for key, value in CONFIG.items() if key not in ("architectures", "hidden_act")}
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "speculators_config": {"algorithm": "eagle", "verifier": {"architectures": ["LlamaForCausalLM"]}},
        "transformer_layer_config": layer,
        "layernorms": True,
    }
    return w, config, oracle


def eagle3(target: Ends, prefix: str, *, own_embed: bool, before: bool, streams: int = 3) -> tuple[Tensors, Oracle]:
    """before: the residual is the normalised state. hidden of the first pairs: streams side by side."""
    w = layer_tensors(prefix, inputs=2 * HIDDEN) | {"fc.weight": random((HIDDEN, streams * HIDDEN), 60)}
    w |= {f"{prefix}hidden_norm.weight": norm_tensor(61), "norm.weight": norm_tensor(62)}
    w |= {"lm_head.weight": random((DRAFT_VOCAB, HIDDEN), 63)}
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(9))[:DRAFT_VOCAB].sort().values
    known = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    w |= {"d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": known}
    w |= {"embed_tokens.weight": random((VOCAB, HIDDEN), 64)} if own_embed else {}
    embed = w.get("embed_tokens.weight", target.embed)

    def oracle(pairs: Pairs, draft: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, hidden = pairs
        normed = rms(hidden, w[f"{prefix}hidden_norm.weight"])
        seen = torch.cat([rms(embed[ids], w[f"{prefix}input_layernorm.weight"]), normed], dim=-1)
        x = decoder_layer(w, prefix, normed if before else hidden, seen)
        return rms(x, w["norm.weight"]) @ w["lm_head.weight"].T, x

    return w, oracle


_MIMO = "model.mtp_layers.0."
MTP_NAMES = {  # prefix of the layer, matrix, norms of tokens, of states, of logits; embedding first; fed normed
    "deepseek": ("model.layers.4.", "eh_proj", "enorm", "hnorm", "shared_head.norm", True, False),
    "mimo": (
        "model.mtp_layers.0.",
        "input_proj",
        "token_layernorm",
        "hidden_layernorm",
        "final_layernorm",
        False,
        True,
    ),
    "qwen3_next": ("mtp.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", True, True),
}


def mtp(kind: str, target: Ends, *, own: bool = False) -> tuple[Tensors, Oracle]:
    """own: with an embedding and a head, as DeepSeek's files have it."""
    prefix, matrix, of_tokens, of_states, of_logits, embed_first, normed = MTP_NAMES[kind]
    layer = prefix + "layers.0." if kind == "qwen3_next" else prefix
    w = layer_tensors(layer) | {f"{prefix}{matrix}.weight": random((HIDDEN, 2 * HIDDEN), 70)}
    for seed, name in enumerate((of_tokens, of_states, of_logits)):
        w[f"{prefix}{name}.weight"] = norm_tensor(71 + seed)
    if own:
        w[f"{prefix}embed_tokens.weight"] = random((VOCAB, HIDDEN), 75)
        w[f"{prefix}shared_head.head.weight"] = random((VOCAB, HIDDEN), 76)
    embed = w.get(f"{prefix}embed_tokens.weight", target.embed)
    lm_head = w.get(f"{prefix}shared_head.head.weight", target.lm_head)

    def oracle(pairs: Pairs, draft: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, hidden = pairs
        halves = [rms(embed[ids], w[f"{prefix}{of_tokens}.weight"]), rms(hidden, w[f"{prefix}{of_states}.weight"])]
        x = torch.cat(halves if embed_first else halves[::-1], dim=-1) @ w[f"{prefix}{matrix}.weight"].T
        x = decoder_layer(w, layer, x, rms(x, w[f"{layer}input_layernorm.weight"]))
        for_logits = rms(x, w[f"{prefix}{of_logits}.weight"])
        return for_logits @ lm_head.T, for_logits if normed else x

    return w, oracle


def medusa(kind: str, target: Ends, *, heads: int = 3, blocks: int = 2) -> tuple[Tensors, Oracle]:
    """kind: vllm, original, or shared (vLLM's without heads of its own), or mapped (vLLM's of few tokens)."""
    w: Tensors = {}
    rows = DRAFT_VOCAB if kind == "mapped" else VOCAB
    for head in range(heads):
        for block in range(blocks):
            name = f"{head}.{block}.linear" if kind == "original" else f"blocks.{head}.layers.{block}"
            w[f"{name}.weight"] = random((HIDDEN, HIDDEN), 80 + 10 * head + block)
            if kind == "original":
                w[f"{name}.bias"] = random((HIDDEN,), 180 + 10 * head + block)
        if kind != "shared":
            name = f"{head}.{blocks}" if kind == "original" else f"lm_heads.{head}"
            w[f"{name}.weight"] = random((rows, HIDDEN), 280 + head)
    if kind == "mapped":
        w["token_map"] = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(9))[:rows]

    def oracle(pairs: Pairs, draft: int) -> tuple[torch.Tensor, torch.Tensor]:
        _, hidden = pairs
        x = hidden
        for block in range(blocks):
            name = f"{draft}.{block}.linear" if kind == "original" else f"blocks.{draft}.layers.{block}"
            x = x + F.silu(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(HIDDEN)))
        name = f"{draft}.{blocks}" if kind == "original" else f"lm_heads.{draft}"
        return x @ w.get(f"{name}.weight", target.lm_head).T, hidden

    return w, oracle
