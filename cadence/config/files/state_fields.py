"""The fields of models whose layers keep a state in place of keys."""

from __future__ import annotations

from collections.abc import Mapping

from cadence.config.files.field_types import Boolean, FieldType, Integer, Limit, ListOf, Number

_SIZE, _HEADS, _TAPS = Integer(1, 2**24), Integer(1, 2**16), Integer(2, 2**8)

STATE_FIELDS: Mapping[str, FieldType] = {
    "state_size": _HEADS,
    "num_heads": _HEADS,
    "n_groups": _HEADS,
    "conv_kernel": _TAPS,
    "expand": Number(0, 2**10),
    "use_bias": Boolean(),
    "use_conv_bias": Boolean(),
    "time_step_limit": ListOf(Limit()),
}
