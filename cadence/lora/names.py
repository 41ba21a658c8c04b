"""Names of tensors in a PEFT checkpoint: of which module of the model, and what they are to it."""

from __future__ import annotations

import re
from enum import Enum

_PREFIX = "base_model.model."


class Role(Enum):
    A = "lora_A.weight"  # [rank, in]
    B = "lora_B.weight"  # [out, rank]
    B_BIAS = "lora_B.bias"  # [out]
    EMBEDDING_A = "lora_embedding_A"  # [rank, vocabulary]
    EMBEDDING_B = "lora_embedding_B"  # [size, rank]
    MAGNITUDE = "lora_magnitude_vector"  # [out]
    BASE = "base_layer.weight"  # the model's own, saved beside
    BIAS = "base_layer.bias"  # [out], in place of the model's own
    SAVED = "weight"  # in place of the model's own
    PLAIN_BIAS = "bias"  # [out] of a module that has no A and B


_ENDINGS = (
    (r"lora_A(?:\.default)?\.weight", Role.A),
    (r"lora_B(?:\.default)?\.weight", Role.B),
    (r"lora_B(?:\.default)?\.bias", Role.B_BIAS),
    (r"lora_embedding_A(?:\.default)?", Role.EMBEDDING_A),
    (r"lora_embedding_B(?:\.default)?", Role.EMBEDDING_B),
    (r"lora_magnitude_vector(?:\.default)?(?:\.weight)?", Role.MAGNITUDE),
    (r"base_layer\.weight", Role.BASE),
    (r"base_layer\.bias", Role.BIAS),
    (r"(?:modules_to_save\.(?:default\.)?)?weight", Role.SAVED),
    (r"bias", Role.PLAIN_BIAS),
)
_PATTERNS = tuple((re.compile(r"([\w.]+)\." + ending), role) for ending, role in _ENDINGS)


def parse_name(name: str) -> tuple[str, Role] | None:
    """-> (module as the model's checkpoint names it, what the tensor is to it), or None for what no adapter has."""
    bare = name.removeprefix(_PREFIX)
    for pattern, role in _PATTERNS:
        found = pattern.fullmatch(bare)
        if found is not None:
            return found[1], role
    return None
