"""Modules as quantisation configs speak of them: by name, by the beginning of one, by pattern, by class."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.linear_pattern import LinearPattern

MOST_NAME = 256  # characters of a module's name; patterns take time that grows with it
_CLASSES = ("Linear", "Embedding")
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings")
_MOST_PATTERNS = 256  # of one list


@dataclass(frozen=True, slots=True)
class ModuleNames:
    exact: tuple[str, ...] = ()
    within: tuple[str, ...] = ()  # components one after another, anywhere in a name
    patterns: tuple[LinearPattern, ...] = ()  # of the beginning of a name
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: tuple[str, ...], exact: bool) -> ModuleNames:
        """exact: texts are whole names, or `re:` patterns; else parts of names. ValueError says what is wrong."""
        written = [text.removeprefix("re:") for text in texts if text.startswith("re:")]
        if len(written) > _MOST_PATTERNS:
            raise ValueError(f"{len(written)} patterns, at most {_MOST_PATTERNS}")
        patterns = tuple(LinearPattern(text) for text in written)
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
