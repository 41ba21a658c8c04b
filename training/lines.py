"""Texts packed into lines of one length, several in a line, and what a forward needs to keep them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch

from training.texts import Texts

_OPEN = 64  # lines that are looked at for room


@dataclass(frozen=True)
class Lines:
    ids: torch.Tensor  # [N, L] int64; 0 after the last text
    texts: torch.Tensor  # [N, L] int64: which text of all; -1 after the last one
    positions: torch.Tensor  # [N, L] int64: of a token in its text
    answer: torch.Tensor  # [N, L] bool

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, which: torch.Tensor | slice) -> Lines:
        return Lines(*(getattr(self, each.name)[which] for each in fields(self)))

    def to(self, device: torch.device) -> Lines:
        return Lines(*(getattr(self, each.name).to(device) for each in fields(self)))

    def same_text(self) -> torch.Tensor:
        """[N, L, L] bool: the two tokens are of one text."""
        return self.texts[:, :, None] == self.texts[:, None, :]

    def drafted(self, step: int) -> torch.Tensor:
        """[N, L] bool: draft `step`, made at position q for the token of q + 2, is one that decoding would make: the
        token that its round of drafts begins with, that of q - step + 1, is the model's, and so is that of q + 2."""
        begun = _shifted(self.answer, step - 1) & (_shifted(self.texts, step - 1) == self.texts)
        return begun & _shifted(self.answer, -2) & (_shifted(self.texts, -2) == self.texts)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """x [N, L] moved `by` places to the right; what comes in is False, or text -2, which there is not."""
    out = torch.full_like(x, False) if x.dtype == torch.bool else torch.full_like(x, -2)
    if by > 0:
        out[:, by:] = x[:, :-by]
    elif by < 0:
        out[:, :by] = x[:, -by:]
    else:
        out.copy_(x)
    return out


def pack(texts: Texts, length: int) -> Lines:
    """Each text whole, in the first line that has room for it; of a text longer than a line, its beginning."""
    spans = [(first, min(end, first + length)) for first, end in texts.spans()]
    placed: list[list[int]] = []  # texts of each line
    room: list[int] = []
    for text, (first, end) in enumerate(spans):
        size = end - first
        line = next((i for i in range(max(0, len(room) - _OPEN), len(room)) if room[i] >= size), len(room))
        if line == len(room):
            placed.append([])
            room.append(length)
        placed[line].append(text)
        room[line] -= size
    return _filled(texts, spans, placed, length)


def _filled(texts: Texts, spans: list[tuple[int, int]], placed: list[list[int]], length: int) -> Lines:
    shape = (len(placed), length)
    ids, number = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    positions, answer = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for line, held in enumerate(placed):
        at = 0
        for text in held:
            first, end = spans[text]
            to = slice(at, at + end - first)
            ids[line, to], answer[line, to] = texts.ids[first:end], texts.answer[first:end]
            number[line, to], positions[line, to] = text, np.arange(end - first)
            at = to.stop
    return Lines(*(torch.from_numpy(part) for part in (ids, number, positions, answer)))


def endless(lines: Lines, count: int, seed: int) -> Iterator[Lines]:
    """Batches of `count` lines, in a new order each time all have been seen."""
    rng = torch.Generator().manual_seed(seed)
    device, count = lines.ids.device, min(count, len(lines))
    while True:
        order = torch.randperm(len(lines), generator=rng).to(device)
        for first in range(0, len(lines) - count + 1, count):
            yield lines[order[first : first + count]]
