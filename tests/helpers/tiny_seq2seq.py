"""Tiny random encoder-decoder models of every family, saved as users' models are, and what transformers makes of them.

`make_seq2seq("bart", directory)` gives the same files every time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, PAD, VOCAB, save_tokenizer

POSITIONS = 128  # of the encoder, and of the decoder
MELS = 12
_SPECIAL = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "decoder_start_token_id": EOS}


def _bart(**changes: Any) -> dict[str, Any]:
    """Encoder and decoder differ in layers, heads and inner values."""
    sizes = {
        "vocab_size": VOCAB,
        "d_model": 48,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 80,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": POSITIONS,
        "forced_eos_token_id": None,
    }
    return sizes | _SPECIAL | changes


def _t5(**changes: Any) -> dict[str, Any]:
    """Distances beyond the last bucket are met."""
    sizes = {
        "vocab_size": VOCAB,
        "d_model": 48,
        "d_kv": 20,
        "d_ff": 80,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 3,
        "relative_attention_num_buckets": 12,
        "relative_attention_max_distance": 40,
    }
    return sizes | _SPECIAL | changes


_SOUND = {"num_mel_bins": MELS, "max_source_positions": POSITIONS, "max_target_positions": POSITIONS}

_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": ("BartConfig", "BartForConditionalGeneration", _bart()),
    "marian": ("MarianConfig", "MarianMTModel", _bart(scale_embedding=True, activation_function="swish")),
    "marian_two": ("MarianConfig", "MarianMTModel", _bart(share_encoder_decoder_embeddings=False)),
    "t5": ("T5Config", "T5ForConditionalGeneration", _t5()),
    "flan_t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", _t5(feed_forward_proj="gated-gelu")),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", _bart(**_SOUND)),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", _bart(scale_embedding=True)),
}
FAMILIES = tuple(_FAMILIES)
_SPREADS = {"t5": 0.15, "flan_t5": 0.15, "mt5": 0.15, "whisper": 1.5}  # such that many words are said
SOUND = ("whisper",)  # families whose encoders read features of sound


@same_every_time
def make_seq2seq(family: str, directory: Path, **changes: Any) -> Path:
    """Saves a model and its tokenizer into `directory`, which is made where needed, and returns it. changes: to its
    sizes"""
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    config_name, model_name, sizes = _FAMILIES[family]
    config = getattr(transformers, config_name)(**sizes | changes)
    model = getattr(transformers, model_name)(config).eval()
    _randomise(model, _SPREADS.get(family, 0.6))
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def _randomise(model: torch.nn.Module, words: float) -> None:
    """Norms and biases show when they are left out, and what comes next depends on the words so far. words: how far the
    entries of their vectors spread"""
    generator = torch.Generator().manual_seed(7)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or (name.endswith("embed_positions.weight") and not tensor.requires_grad):
                continue  # sines stay what they are
            spread = words if name.endswith(_WORDS) else 0.15
            noise = torch.empty_like(tensor).normal_(0.0, spread, generator=generator)
            tensor.copy_(tensor + noise if tensor.dim() == 1 else noise)


_WORDS = ("shared.weight", "embed_tokens.weight", "lm_head.weight")


class Seq2SeqOracle:
    """transformers, in float32."""

    def __init__(self, directory: Path) -> None:
        import transformers

        architecture = transformers.AutoConfig.from_pretrained(directory).architectures[0]
        kind = getattr(transformers, architecture)
        self.model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()

    def states(self, content: list[int] | np.ndarray) -> torch.Tensor:
        """What the encoder makes of token ids, or of features [mels, frames] -> [positions, hidden]"""
        with torch.no_grad():
            return self.model.get_encoder()(torch.tensor(content)[None]).last_hidden_state[0]

    def logprobs(self, content: list[int] | np.ndarray, tokens: list[int]) -> torch.Tensor:
        """[len(tokens), vocabulary]: line i is the distribution of token i + 1"""
        from transformers.modeling_outputs import BaseModelOutput

        given = BaseModelOutput(last_hidden_state=self.states(content)[None])
        with torch.no_grad():
            output = self.model(encoder_outputs=given, decoder_input_ids=torch.tensor([tokens]))
        return torch.log_softmax(output.logits[0].float(), dim=-1)
