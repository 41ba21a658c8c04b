"""What layers of the toy model read: a window, a chunk, all, or a source of tokens that a request brings beside its
prompt."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.core.contract.request import EngineRequest
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.model.kv_spec import CHUNKED, KVGroup, LayerKV

SOURCE = -1  # in the place of a window: a group of cross attention
MAX_SOURCE = 12  # positions
_CHUNKS = 1000  # more than any window


def chunks_of(count: int) -> int:
    """In the place of a window: a group whose layers see chunks of so many tokens."""
    return _CHUNKS + count


def layer_of(window: int) -> LayerKV:
    if window > _CHUNKS:
        return LayerKV(1, 1, chunk=window - _CHUNKS)
    return LayerKV(1, 1, window, cross=window == SOURCE)


def window_of(group: KVGroup) -> int:
    return chunks_of(group.window) if group.kind == CHUNKED else group.window


def first_visible(window: int, position: int) -> int:
    if window > _CHUNKS:
        return position // (window - _CHUNKS) * (window - _CHUNKS)
    return max(0, position - window + 1) if window else 0


def source_entries(token_ids: Sequence[int]) -> list[int]:
    """What an encoder writes for each position: it depends on all of them."""
    return [hash((position, *token_ids)) for position in range(len(token_ids))]


def source_of(request: EngineRequest) -> list[int]:
    """The entries of what a request brings."""
    content = request.attached(EncoderInput)
    return [] if content is None else source_entries(content.token_ids_np.tolist())


def needed_by(window: int, table: list[int], start: int, end: int, size: int) -> list[int]:
    """Blocks of a table that computing tokens [start, end) reads or writes. size: tokens of a block"""
    if window == SOURCE:
        return table
    return table[first_visible(window, start) // size : -(-end // size)]
