"""Texts that a model wrote: tokens of prompt and answer, where the answer begins, and how it was drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Text:
    ids: list[int]  # of the prompt, then of the answer
    start: int  # where the answer begins
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Texts:
    """All texts end to end."""

    ids: np.ndarray  # [tokens] int32
    answer: np.ndarray  # [tokens] bool: written by the model, not part of the prompt
    ends: np.ndarray  # [texts] int64: after the last token of each
    temperatures: np.ndarray  # [texts] float32
    seeds: np.ndarray  # [texts] int64

    @staticmethod
    def of(texts: Sequence[Text]) -> Texts:
        ids = [np.asarray(text.ids, dtype=np.int32) for text in texts]
        answer = [np.arange(len(text.ids)) >= text.start for text in texts]
        return Texts(
            ids=np.concatenate(ids),
            answer=np.concatenate(answer),
            ends=np.cumsum([len(each) for each in ids]),
            temperatures=np.array([text.temperature for text in texts], dtype=np.float32),
            seeds=np.array([text.seed for text in texts], dtype=np.int64),
        )

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first token, after the last) of each text."""
        return zip([0, *self.ends[:-1].tolist()], self.ends.tolist(), strict=True)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: getattr(self, name) for name in self.__annotations__})

    @staticmethod
    def load(path: Path) -> Texts:
        with np.load(path) as held:
            return Texts(**{name: held[name] for name in held.files})

    def frequent(self, count: int) -> np.ndarray:
        """Ids of the `count` tokens most often written in answers, ascending; [count] int64."""
        counts = np.bincount(self.ids[self.answer], minlength=count)
        return np.sort(np.argsort(-counts, kind="stable")[:count])

    def coverage(self, ids: np.ndarray) -> float:
        """Share of the answers' tokens that are among these."""
        return float(np.isin(self.ids[self.answer], ids).mean())
