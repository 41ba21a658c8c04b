"""Names that an option of a benchmark lists, in one word of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """For `type=`: the names between commas; one that is not `known` is refused before anything is measured."""
    allowed = tuple(known)

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not known here: name some of {', '.join(allowed)}")
        return names

    return read
