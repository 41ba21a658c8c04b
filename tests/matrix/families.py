"""The models that the matrix is run on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.seeing import noise
from tests.helpers.tiny_models import VOCAB, make_tiny
from tests.helpers.tiny_qwen_vl import END, IMAGE_PAD, START, make_qwen_vl
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.helpers.tiny_vision import make_vision
from tests.matrix.features import CROSS, PICTURES, PREEMPTION, REFUSED, STATES

WITH_ENCODER = "bart"  # cross attention: every request brings something for an encoder to read
WITH_PICTURES = "llava"  # every request brings a picture or two
WITH_AXES = "qwen2_vl"  # the same, and tokens turn by lines and columns of pictures
FAMILIES = ("llama", "gemma2")  # one KV group; full and sliding groups over one pool
STATES_ALONE, STATES_BESIDE = "mamba2", "bamba"  # no attention at all; attention in some layers
EVERY_FAMILY = (*FAMILIES, WITH_ENCODER, WITH_PICTURES, WITH_AXES, STATES_ALONE, STATES_BESIDE, "mixtral")
UNUSUAL = frozenset({"mixtral"})  # experts, too: `make matrix-experts`
HAVING = {  # by the model itself
    WITH_ENCODER: frozenset({CROSS.name}),
    WITH_PICTURES: frozenset({PICTURES.name}),
    WITH_AXES: frozenset({PICTURES.name}),
    STATES_ALONE: frozenset({STATES.name}),
    STATES_BESIDE: frozenset({STATES.name}),
}
LACKING = {
    family: frozenset(other for cell in REFUSED if {*cell} & own for other in cell) - own
    for family, own in HAVING.items()
}
LACKING[STATES_ALONE] |= {PREEMPTION.name}  # no blocks run out
_CONTENT = 8  # tokens of a prompt that its content is made of: prompts that begin alike share it
_AT = (2, 11)  # after so many tokens there is a picture, and another one in some prompts
_PICTURE = {WITH_PICTURES: [VOCAB], WITH_AXES: [START, IMAGE_PAD, END]}  # tokens that stand for one


def lacking(family: str) -> frozenset[str]:
    return LACKING.get(family, frozenset())


def having(family: str) -> frozenset[str]:
    return HAVING.get(family, frozenset())


def prompt_of(family: str, token_ids: Sequence[int]) -> Any:
    """What a request of these tokens is given as."""
    if family in _PICTURE:
        return _with_pictures(list(token_ids), _PICTURE[family])
    if family != WITH_ENCODER:
        return list(token_ids)
    content = [*token_ids[:_CONTENT], *range(9, 9 + token_ids[0] % 30), 1]
    return {"encoder_prompt": content, "decoder_prompt": list(token_ids)}


def _with_pictures(token_ids: list[int], picture: Sequence[int]) -> dict[str, Any]:
    """Pictures by the prompt's first token, so that prompts that begin alike share them, and beams keep theirs."""
    places = _AT if token_ids[0] % 4 == 3 else _AT[:1]
    pictures = [noise(24 + 8 * number, 30, token_ids[0] + number) for number in range(len(places))]
    for place in reversed(places):
        token_ids[place:place] = picture
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": pictures}}


def make_family(family: str, directory: Path) -> Path:
    """A tiny random model that the other tests have no fixture of."""
    if family == WITH_AXES:
        return make_qwen_vl("2", directory)
    if family == WITH_PICTURES:
        return make_vision(family, directory)
    if family in (STATES_ALONE, STATES_BESIDE):
        return make_tiny(family, directory)
    return make_seq2seq(family, directory)
