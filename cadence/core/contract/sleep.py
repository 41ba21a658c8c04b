"""Parts of an engine that sleep, by the tags that users wake them by; and what its weights are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError

WEIGHTS = "weights"
KV_CACHE = "kv_cache"  # with the states of rows, and what encoders have made of pictures
SCHEDULING = "scheduling"  # of steps; takes no memory
MEMORY_TAGS = (WEIGHTS, KV_CACHE)  # in the order in which they wake
SLEEP_TAGS = (*MEMORY_TAGS, SCHEDULING)
LEVELS = (0, 1, 2)  # nothing is computed; weights go to host memory; weights are dropped, and read again


@dataclass(frozen=True, slots=True)
class WeightsState:
    """All that makes the weights of an engine what they are."""

    folder: str = ""  # with all of them, or a .gguf file; "" = the model's own
    patches: tuple[str, ...] = ()  # folders with some, in place of those of the same names; later ones count


FIRST_WEIGHTS = WeightsState()


def checked_level(level: object) -> int:
    if not isinstance(level, int) or isinstance(level, bool) or level not in LEVELS:
        raise InvalidRequestError(f"level must be one of {', '.join(map(str, LEVELS))}, not {level!r}", "level")
    return level


def only_held(parts: Sequence[str]) -> bool:
    """Of an engine that was woken by its tags: all memory is there, and steps may begin."""
    return not {*parts} & {*MEMORY_TAGS}


def checked_tags(tags: object) -> Sequence[str]:
    """In the order in which they wake."""
    if not tags:
        return SLEEP_TAGS
    named = [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, (list, tuple, set)) else [tags]
    for tag in named:
        if tag not in SLEEP_TAGS:
            raise InvalidRequestError(f"tags are {', '.join(SLEEP_TAGS)}; {tag!r} is none of them", "tags")
    return [tag for tag in SLEEP_TAGS if tag in named]
