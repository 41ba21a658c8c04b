"""The models that the matrix is run on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.seeing import noise
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.helpers.tiny_vision import make_vision
from tests.matrix.features import CROSS, PICTURES, REFUSED

WITH_ENCODER = "bart"  # cross attention: every request brings something for an encoder to read
WITH_PICTURES = "llava"  # every request brings a picture or two
FAMILIES = ("llama", "gemma2")  # one KV group; full and sliding groups over one pool
EVERY_FAMILY = (*FAMILIES, WITH_ENCODER, WITH_PICTURES, "mixtral")  # experts, too: `make matrix-experts`
UNUSUAL = frozenset({"mixtral"})
HAVING = {WITH_ENCODER: frozenset({CROSS.name}), WITH_PICTURES: frozenset({PICTURES.name})}  # by the model itself
LACKING = {
    family: frozenset(other for cell in REFUSED if {*cell} & own for other in cell) - own
    for family, own in HAVING.items()
}
_CONTENT = 8  # tokens of a prompt that its content is made of: prompts that begin alike share it
_AT = (2, 11)  # after so many tokens there is a picture, and another one in some prompts
_IMAGE_ID = VOCAB  # the first token after those of the tokenizer that all tiny models share


def lacking(family: str) -> frozenset[str]:
    return LACKING.get(family, frozenset())


def having(family: str) -> frozenset[str]:
    return HAVING.get(family, frozenset())


def prompt_of(family: str, token_ids: Sequence[int]) -> Any:
    """What a request of these tokens is given as."""
    if family == WITH_PICTURES:
        return _with_pictures(list(token_ids))
    if family != WITH_ENCODER:
        return list(token_ids)
    content = [*token_ids[:_CONTENT], *range(9, 9 + token_ids[0] % 30), 1]
    return {"encoder_prompt": content, "decoder_prompt": list(token_ids)}


def _with_pictures(token_ids: list[int]) -> dict[str, Any]:
    """Pictures by the prompt's first token, so that prompts that begin alike share them, and beams keep theirs."""
    places = _AT if token_ids[0] % 4 == 3 else _AT[:1]
    pictures = [noise(24 + 8 * number, 30, token_ids[0] + number) for number in range(len(places))]
    for place in reversed(places):
        token_ids.insert(place, _IMAGE_ID)
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": pictures}}


def make_family(family: str, directory: Path) -> Path:
    """A tiny random model that the other tests have no fixture of."""
    if family == WITH_PICTURES:
        return make_vision(family, directory)
    return make_seq2seq(family, directory)
