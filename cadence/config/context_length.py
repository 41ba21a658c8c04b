"""How many tokens a model was made for, read off its config.

Layers that keep a state take as long for the millionth token as for the first. A model of these alone has no limit but
the user's, and a usual length where there is none.
"""

from __future__ import annotations

from typing import Any

from cadence.config.files.fields import LENGTHS
from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError

RELATIVE_LENGTH = 512  # of models that know distances alone, as T5 was trained, where their files say nothing
STATE_LENGTH = 32768  # usual, of models without attention
WITHOUT_ATTENTION = ("MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM", "Rwkv7ForCausalLM")
NO_LIMIT = 2**30  # tokens
UNSAID = ("Bloom", "Falcon")
UNSAID_LENGTH = 2048  # these were trained with, where their files say nothing
ALREADY_SCALED = ("longrope", "su", "llama3", "default")  # max_position_embeddings is the extended length


def window_of(hf: HFConfig) -> int:
    """Tokens that layers with a window see, or those of a chunk; 0 = all are seen."""
    window = hf.get("sliding_window") if hf.get("use_sliding_window", True) else 0
    return int(window or hf.get("attention_chunk_size") or 0)


def context_limit(hf: HFConfig) -> int:
    """The longest context that may be asked for."""
    return NO_LIMIT if hf.family in WITHOUT_ATTENTION else model_context_length(hf)


def model_context_length(hf: HFConfig) -> int:
    """The usual context: the longest, where there is a limit."""
    if hf.family in WITHOUT_ATTENTION:
        return STATE_LENGTH
    lengths = [value for key in LENGTHS if (value := hf.get(key)) is not None]
    if not lengths and hf.get("is_encoder_decoder") and hf.get("relative_attention_num_buckets"):
        lengths = [RELATIVE_LENGTH]
    if not lengths and hf.family.startswith(UNSAID):
        lengths = [UNSAID_LENGTH]
    if not lengths:
        raise ConfigError(f"{hf.source}: none of {', '.join(LENGTHS)} says how long a context may be", LENGTHS[0])
    length = _stretched(min(lengths) - _unused_positions(hf), hf)
    return min(length, hf.sentence.max_length or length)


def _unused_positions(hf: HFConfig) -> int:
    """Of a table whose positions begin after that of padding, and count among them."""
    name = hf.architecture.removeprefix("XLM")
    if name.startswith("MPNet"):
        return 2
    padding = hf.get("pad_token_id")
    return (1 if padding is None else padding) + 1 if name.startswith(("Roberta", "Camembert")) else 0


def _stretched(length: int, hf: HFConfig) -> int:
    """Linear, dynamic and yarn scaling multiply the length; Gemma 3 writes the product down itself."""
    scaling: dict[str, Any] = hf.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ALREADY_SCALED or hf.family.startswith("Gemma3"):
        return length
    if kind == "yarn":
        length = scaling.get("original_max_position_embeddings") or length
    return int(length * (scaling.get("factor") or 1.0))
