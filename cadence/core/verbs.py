"""What an executor can be told beside steps: every verb, with the type of its payload and of its answer.

`None` stands for "nothing". A new verb is a line here, one in the worker's table, and a function in
`executor/control.py`; whatever carries messages stays as it is.
"""

from __future__ import annotations

from typing import Any

from cadence.core.adapter import AdapterOutcome

VERBS: dict[str, tuple[Any, Any]] = {  # verb -> (payload, answer)
    "kv_bytes": (None, int),
    "allocate_kv": (int, None),
    "warm_up": (str, None),
    "warm_up_more": (None, bool),
    "prepare_adapter": (str, None),
    "prepared_adapters": (None, list[AdapterOutcome]),
    "forget_adapter": (str, None),
}
