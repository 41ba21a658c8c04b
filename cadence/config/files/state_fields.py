"""The fields of models whose layers keep a state in place of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.config.files.field_types import Boolean, FieldType, Integer, Limit, ListOf, Number

_RANK = Integer(1, 2**16)


@dataclass(frozen=True, slots=True)
class RankOrAuto:
    expected: str = f"{_RANK.expected}, or 'auto'"

    def read(self, value: Any) -> int | str:
        return value if value == "auto" else _RANK.read(value)


_SIZE, _HEADS, _TAPS = Integer(1, 2**24), Integer(1, 2**16), Integer(2, 2**8)

STATE_FIELDS: Mapping[str, FieldType] = {
    "state_size": _HEADS,
    "num_heads": _HEADS,
    "n_groups": _HEADS,
    "conv_kernel": _TAPS,
    "expand": Number(0, 2**10),
    "time_step_rank": RankOrAuto(),
    "mixer_rms_eps": Number(0, 1),
    "use_bias": Boolean(),
    "use_conv_bias": Boolean(),
    "time_step_limit": ListOf(Limit()),
}
