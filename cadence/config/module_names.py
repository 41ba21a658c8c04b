"""Modules as quantisation configs speak of them: by name, by the beginning of one, by pattern, by class."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_NAME = 256  # characters of a module's name; patterns take time that grows with it
_CLASSES = ("Linear", "Embedding")
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings")
_MOST_PATTERN, _MOST_REPEATS = 256, 8
_NESTED = re.compile(r"[*+}]\??\)[*+{]")  # a repeated group that ends in a repetition: may take forever
_REPEATS = re.compile(r"[*+{]")


@dataclass(frozen=True, slots=True)
class ModuleNames:
    exact: tuple[str, ...] = ()
    within: tuple[str, ...] = ()  # components one after another, anywhere in a name
    patterns: tuple[re.Pattern[str], ...] = ()  # of the beginning of a name
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: tuple[str, ...], exact: bool) -> ModuleNames:
        """exact: texts are whole names, or `re:` patterns; else parts of names. ValueError says what is wrong."""
        patterns = tuple(_compiled(text[3:]) for text in texts if text.startswith("re:"))
        classes = tuple(text for text in texts if text in _CLASSES)
        names = tuple(text for text in texts if not text.startswith("re:") and text not in _CLASSES)
        return cls(names if exact else (), () if exact else names, patterns, classes)

    def names(self, module: str) -> bool:
        if module in self.exact:
            return True
        dotted = f".{module}."
        return any(f".{part}." in dotted for part in self.within) or any(p.match(module) for p in self.patterns)

    def has_class_of(self, module: str) -> bool:
        return ("Embedding" if module.rsplit(".", 1)[-1] in _EMBEDDINGS else "Linear") in self.classes


def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > _MOST_PATTERN or len(_REPEATS.findall(pattern)) > _MOST_REPEATS or _NESTED.search(pattern):
        raise ValueError(f"the pattern {pattern[:64]!r} is too long, or repeats too much")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern[:64]!r} is no pattern: {error}") from None
