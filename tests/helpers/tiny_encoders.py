"""Tiny random encoders of every family, saved as users' models are, and what transformers makes of texts with them.

`make_encoder("bert", directory)` has no head; `make_encoder("bert", directory, "texts")` gives scores of texts, and
"tokens" of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, PAD, VOCAB, save_tokenizer

POSITIONS = 256  # tokens of a text
LABELS = 3
_HEADS = {"": "Model", "texts": "ForSequenceClassification", "tokens": "ForTokenClassification"}


def _sizes(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    return sizes | changes


_DISTIL = {"vocab_size": VOCAB, "dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 3, "pad_token_id": PAD}
_SPECIAL = {"cls_token_id": BOS, "sep_token_id": EOS}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _sizes()),
    "roberta": ("Roberta", _sizes(max_position_embeddings=POSITIONS + PAD + 1, type_vocab_size=1)),
    "xlm_roberta": ("XLMRoberta", _sizes(max_position_embeddings=POSITIONS + 2, pad_token_id=1, eos_token_id=2)),
    "distilbert": ("DistilBert", _DISTIL | {"max_position_embeddings": POSITIONS}),
    "mpnet": ("MPNet", _sizes(max_position_embeddings=POSITIONS + 2, pad_token_id=1, eos_token_id=2)),
    "modernbert": ("ModernBert", _sizes(local_attention=32, num_hidden_layers=4) | _SPECIAL),
    "modernbert_mean": ("ModernBert", _sizes(local_attention=32, classifier_pooling="mean") | _SPECIAL),
    "nomic": ("NomicBert", _sizes(layer_norm_eps=1e-12)),
}
FAMILIES = tuple(_FAMILIES)


@same_every_time
def make_encoder(family: str, directory: Path, head: str = "", **changes: int) -> Path:
    """Saves a model and its tokenizer into `directory`, which is made where needed, and returns it. changes: to its
    sizes"""
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    name, sizes = _FAMILIES[family]
    labels = {"num_labels": LABELS} if head else {}
    config = getattr(transformers, f"{name}Config")(**sizes | labels | changes)
    model = getattr(transformers, name + _HEADS[head])(config).eval()
    _randomise(model)
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def _randomise(model: torch.nn.Module) -> None:
    """Norms and biases show when they are left out."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty_like(parameter).normal_(0.0, 0.15, generator=generator)
            parameter.copy_(parameter + noise if parameter.dim() == 1 else noise)


def states_of(directory: Path, head: str = "") -> Callable[..., np.ndarray]:
    """prompt, further inputs -> hidden states [tokens, hidden], or scores [labels], or scores of tokens
    [tokens, labels]; in float32 by transformers"""
    import transformers

    kinds = {
        "": "AutoModel",
        "texts": "AutoModelForSequenceClassification",
        "tokens": "AutoModelForTokenClassification",
    }
    kind = getattr(transformers, kinds[head])
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()

    def compute(prompt: list[int], **inputs: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            output = model(torch.tensor([prompt]), **inputs)
        return (output.logits if head else output.last_hidden_state)[0].float().numpy()

    return compute
