"""Tiny random models of every family, saved as users' models are: safetensors, config, tokenizer.

`make_tiny(family, directory)` gives the same files every time. Run engines on them with `max_model_len=MAX_LEN`: every
one equals transformers up to that length (longrope would switch to its long factors beyond it).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_decoders import DECODER_MODELS, DECODERS_IN_GGUF, UNLIKE_OTHERS
from tests.helpers.tiny_sizes import BOS, EOS, MAX_LEN, PAD, VOCAB, WINDOW, decoder_sizes
from tests.helpers.tiny_states import STATE_MODELS, STATES_IN_GGUF

SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>")

_SPREADS = {"lm_head.weight": 0.08, "embed_positions.weight": 0.04, "wpe.weight": 0.04, "bias": 0.05}  # by ending
_FAMILY_SPREADS = {
    "opt": (0.2, 0.08),
    "opt_postnorm": (0.08, 0.25),
    "gpt2": (0.2, 0.08),
    "gemma2": (0.2, 0.02),
    "gemma3": (0.2, 0.02),
    "qwen3_next": (0.1, 0.08),
    "qwen3_next_routed": (0.1, 0.08),
    **dict.fromkeys(("starcoder2_wide", "mamba2_wide", "bamba_wide"), (0.075, 0.08)),
}  # of the blocks, of the embedding; (0.15, 0.08) elsewhere
_FINAL_NORMS = (
    "model.norm.weight",
    "backbone.norm_f.weight",
    "model.embedding_norm.weight",
    "model.final_layernorm.weight",
    "transformer.ln_f.weight",
    "model.decoder.final_layer_norm.weight",
)
_TEXT = (
    "the quick brown fox jumps over the lazy dog while the slow river runs to the sea",
    "a token is a piece of text and a model reads tokens one after another",
    "one two three four five six seven eight nine ten eleven twelve",
    "to be or not to be that is the question",
)
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10_000.0, **settings}


def _llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**decoder_sizes(**changes)))


def _llama3() -> Any:
    rope = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
    return _llama(rope_parameters=rope | {"rope_theta": 500_000.0}, tie_word_embeddings=True)


def _mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**decoder_sizes(sliding_window=WINDOW, head_dim=24)))


def _qwen2(**changes: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    window = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
    return Qwen2ForCausalLM(Qwen2Config(**decoder_sizes(**window | changes)))


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**decoder_sizes(head_dim=32, tie_word_embeddings=True)))


def _qwen3_moe(**changes: Any) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**decoder_sizes(**experts | changes)))


def _mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}
    return MixtralForCausalLM(MixtralConfig(**decoder_sizes(**experts)))


def _smollm3(**changes: Any) -> Any:
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    return SmolLM3ForCausalLM(SmolLM3Config(**decoder_sizes(tie_word_embeddings=True, **changes)))


def _opt(**changes: Any) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    sizes = decoder_sizes(ffn_dim=96, tie_word_embeddings=True, **changes)
    for unused in ("intermediate_size", "num_key_value_heads"):
        del sizes[unused]
    return OPTForCausalLM(OPTConfig(**sizes))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": MAX_LEN}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD))


def _gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = decoder_sizes(head_dim=24, sliding_window=WINDOW, query_pre_attn_scalar=16, tie_word_embeddings=True)
    return Gemma2ForCausalLM(Gemma2Config(**config, attn_logit_softcapping=5.0, final_logit_softcapping=4.0))


def _gemma3(**changes: Any) -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = decoder_sizes(head_dim=24, sliding_window=WINDOW, query_pre_attn_scalar=16, tie_word_embeddings=True)
    rope = {
        "full_attention": _rope("linear", factor=4.0) | {"rope_theta": 100_000.0},
        "sliding_attention": _rope("default"),
    }
    pattern = {"sliding_window_pattern": 3, "rope_parameters": rope}
    return Gemma3ForCausalLM(Gemma3TextConfig(**config | pattern | changes))


def _phi3(**changes: Any) -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    partial = {"rope_parameters": _rope("default", partial_rotary_factor=0.5), "sliding_window": WINDOW}
    return Phi3ForCausalLM(Phi3Config(**decoder_sizes(**partial | changes)))


def _phi3_longrope() -> Any:
    factors = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.5 * i for i in range(8)]}
    rope = _rope("longrope", **factors, original_max_position_embeddings=MAX_LEN)
    lengths = {"max_position_embeddings": 2 * MAX_LEN, "original_max_position_embeddings": MAX_LEN}
    return _phi3(rope_parameters=rope, sliding_window=None, **lengths)


_FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama_bias": lambda: _llama(attention_bias=True, mlp_bias=True, num_key_value_heads=4),
    "llama3": _llama3,
    "llama_linear": lambda: _llama(rope_parameters=_rope("linear", factor=2.0)),
    "llama_dynamic": lambda: _llama(rope_parameters=_rope("dynamic", factor=2.0)),
    "llama_yarn": lambda: _llama(
        rope_parameters=_rope("yarn", factor=4.0, original_max_position_embeddings=MAX_LEN // 4)
    ),
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": lambda: _qwen3_moe(norm_topk_prob=True),
    "qwen3_moe_mixed": lambda: _qwen3_moe(decoder_sparse_step=2, mlp_only_layers=[3], num_hidden_layers=6),
    "mixtral": _mixtral,
    "smollm3": _smollm3,
    "smollm3_window": lambda: _smollm3(no_rope_layers=[0, 1, 1, 0], use_sliding_window=True, sliding_window=WINDOW),
    "opt": _opt,
    "opt_postnorm": lambda: _opt(do_layer_norm_before=False, word_embed_proj_dim=48),
    "gpt2": _gpt2,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "phi3_longrope": _phi3_longrope,
}
USUAL = (*_FAMILIES, *UNLIKE_OTHERS)  # families that are run where all are said to be; others with `--wide`
FAMILIES = (*_FAMILIES, *DECODER_MODELS)
_MAKERS = _FAMILIES | DECODER_MODELS | STATE_MODELS | DECODERS_IN_GGUF | STATES_IN_GGUF


@same_every_time
def make_tiny(family: str, directory: Path, *, sharded: bool = False, dtype: torch.dtype = torch.float32) -> Path:
    """Saves a model of `family` and its tokenizer into `directory`, which is made where needed, and returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    model = _MAKERS[family]().eval()
    randomise(model, *_FAMILY_SPREADS.get(family, (0.15, 0.08)))
    model.to(dtype).save_pretrained(directory, max_shard_size="60KB" if sharded else "1GB")
    save_tokenizer(directory)
    return directory


def randomise(model: torch.nn.Module, inner: float, embed: float) -> None:
    """Greedy tokens wander, norms and biases show when they are left out, and float32 errors are not blown up.

    Embeddings are small beside what the blocks add: a tied head would repeat the last token forever otherwise.
    """
    generator = torch.Generator().manual_seed(20_250)
    spreads = {"embed_tokens.weight": embed, "wte.weight": embed, "embeddings.weight": embed, **_SPREADS}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = next((spread for ending, spread in spreads.items() if name.endswith(ending)), inner)
            noise = torch.empty_like(parameter).normal_(0.0, spread, generator=generator)
            parameter.copy_(parameter + noise if parameter.dim() == 1 else noise)
            if name.endswith(_FINAL_NORMS):
                parameter.add_(0.16 / embed - 1.0)  # logits of one size, whatever the embeddings'


def save_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer with ids 0 .. VOCAB - 1 at most, special tokens first, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BOS],
        "eos_token": SPECIAL[EOS],
        "pad_token": SPECIAL[PAD],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LEN,
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
