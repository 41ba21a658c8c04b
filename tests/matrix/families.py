"""The models that the matrix is run on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.matrix.features import CROSS, REFUSED

WITH_ENCODER = "bart"  # cross attention: every request brings something for an encoder to read
FAMILIES = ("llama", "gemma2")  # one KV group; full and sliding groups over one pool
EVERY_FAMILY = (*FAMILIES, WITH_ENCODER, "mixtral")  # experts, too: `make matrix-experts`
UNUSUAL = frozenset({"mixtral"})
LACKING = {WITH_ENCODER: frozenset(other for cell in REFUSED for other in cell) - {CROSS.name}}
HAVING = {WITH_ENCODER: frozenset({CROSS.name})}  # features that a model has by itself
_CONTENT = 8  # tokens of a prompt that its content is made of: prompts that begin alike share it


def lacking(family: str) -> frozenset[str]:
    return LACKING.get(family, frozenset())


def having(family: str) -> frozenset[str]:
    return HAVING.get(family, frozenset())


def prompt_of(family: str, token_ids: Sequence[int]) -> Any:
    """What a request of these tokens is given as."""
    if family != WITH_ENCODER:
        return list(token_ids)
    content = [*token_ids[:_CONTENT], *range(9, 9 + token_ids[0] % 30), 1]
    return {"encoder_prompt": content, "decoder_prompt": list(token_ids)}


def make_family(family: str, directory: Path) -> Path:
    """A tiny random model that the other tests have no fixture of."""
    from tests.helpers.tiny_seq2seq import make_seq2seq

    return make_seq2seq(family, directory)
