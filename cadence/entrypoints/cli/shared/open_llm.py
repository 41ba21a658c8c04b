"""A model for a command that runs it in its own process."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadence.entrypoints.llm import LLM


def open_llm(options: dict[str, Any]) -> LLM:
    """Imports the engine and loads the model. What both make is kept, so no garbage is looked for in it, meanwhile or
    later: collections took 0.5 of the 3.4 s (two busy cores, SmolLM2) from the start to the first token."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        from cadence.entrypoints.llm import LLM

        llm = LLM(**options)
        gc.freeze()
        return llm
    finally:
        if was_enabled:
            gc.enable()
