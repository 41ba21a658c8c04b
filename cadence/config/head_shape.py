"""How large a model's head is, and what its scores are called, read off its config."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.core.errors import ModelFileError
from cadence.core.model.model_heads import ModelHead

TWO_WAY, ONE_EACH = "from_2_way_softmax", "no_post_processing"  # how scores are made of the logits of tokens
_NUM_LABELS = {ModelHead.REWARD: 1, ModelHead.PROCESS_REWARD: 2}  # whatever the file says
_USUAL_LABELS = 2  # of a file that does not say
_MOST_LABELS = 1 << 16


def made_from(hf: HFConfig) -> str:
    """How scores are made of the logits of tokens."""
    two_way = hf.get("is_original_qwen3_reranker") or len(hf.get("classifier_from_token") or ()) == 2
    return str(hf.get("method") or (TWO_WAY if two_way else ONE_EACH))


def embedding_size(hf: HFConfig) -> int:
    """Entries, after the modules that follow the model."""
    if hf.sentence.dense:
        return hf.sentence.dense[-1].outputs
    return hidden_size(hf)


def hidden_size(hf: HFConfig) -> int:
    """Entries of what the model gives."""
    return int(hf.get("word_embed_proj_dim") or hf.get("hidden_size") or hf.get("n_embd") or hf.get("dim") or 0)


def num_labels(hf: HFConfig) -> int:
    if hf.head in _NUM_LABELS:
        return _NUM_LABELS[hf.head]
    if hf.head is ModelHead.SCORES and (tokens := hf.get("classifier_from_token")):
        return 1 if made_from(hf) == TWO_WAY else len(tokens)
    named = hf.get("id2label")
    return int(hf.get("num_labels") or (len(named) if isinstance(named, dict) and named else _USUAL_LABELS))


def read_labels(hf: HFConfig) -> tuple[str, ...]:
    """In the order of scores; LABEL_0 and so on where the file names none, or other ones."""
    count, named = num_labels(hf), hf.get("id2label")
    if count > _MOST_LABELS:
        raise ModelFileError(f"{hf.source}: {count} labels, at most {_MOST_LABELS}", "id2label")
    usual = {str(index): f"LABEL_{index}" for index in range(count)}
    if isinstance(named, dict) and {str(key) for key in named} == usual.keys():
        usual = {str(key): str(value)[:256] for key, value in named.items()}
    return tuple(usual[str(index)] for index in range(count))
