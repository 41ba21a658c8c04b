"""Accepted drafts on held-out prompts: `python -m training.evaluate --head head --texts texts_held_out.npz`.

Drafts are kept while they equal the token that the target chose in their place. So a draft counts only if all before it
are tokens of the text, and all drafts of all positions can be made at once, as in training. Where the target drew its
token with noise, the draft is drawn with the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from cadence.kernels.reference.gumbel import gumbel_noise
from training.head import Head
from training.lines import Lines, pack
from training.target import Target, load_target
from training.texts import Texts

LENGTHS = (3, 4, 5)  # drafts of a round
_LINES, _TOKENS = 8, 2048  # of a forward; whose noise is held at once


class Drafts:
    """Which drafts are the token of the text, position by position."""

    def __init__(self, head: Head, target: Target, texts: Texts) -> None:
        self._head, self._target = head, target
        device = target.lm_head.device
        self._temperatures = torch.from_numpy(texts.temperatures).to(device)
        self._seeds = torch.from_numpy(texts.seeds).to(device)

    @torch.inference_mode()
    def right(self, lines: Lines) -> torch.Tensor:
        """[drafts, N, L] bool: draft i made at position q is the token of q + 2."""
        streams, _ = self._target.states(lines, self._head.aux_layers)
        where = lines.drafted(0).flatten().nonzero()[:, 0]
        wanted = lines.ids.flatten()[where + 2]
        text, position = lines.texts.flatten()[where], lines.positions.flatten()[where] + 2
        embeds = F.embedding(lines.ids, self._target.embedding)
        with torch.autocast(streams.device.type, torch.bfloat16, enabled=streams.is_cuda):
            drafts = self._head.states(lines, embeds, streams, max(LENGTHS))
            states = torch.stack([each.flatten(0, 1)[where] for each in drafts])
            chosen = [self._chosen(*part) for part in _split(states, text, position)]
        found = torch.zeros(max(LENGTHS), lines.ids.numel(), dtype=torch.bool, device=lines.ids.device)
        found[:, where] = torch.cat(chosen, dim=1) == wanted
        return found.view(-1, *lines.ids.shape)

    def _chosen(self, states: torch.Tensor, text: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """states [drafts, S, H], of which text and for which position [S] -> tokens [drafts, S]"""
        logits, ids = self._head.logits(states).float(), self._head.ids
        drawn = (self._temperatures[text] > 0).nonzero()[:, 0]
        if len(drawn):
            seeds, heat = self._seeds[text[drawn]], self._temperatures[text[drawn], None]
            noise = gumbel_noise(seeds, position[drawn], self._head.config["vocab_size"])[:, ids]
            logits[:, drawn] = logits[:, drawn] / heat + noise
        return ids[logits.argmax(-1)]


def _split(states: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    parts = (states.split(_TOKENS, dim=1), *(other.split(_TOKENS) for other in others))
    return zip(*parts, strict=True)


def accepted(right: np.ndarray, start: int, most: int) -> list[int]:
    """Of each round, in a text of which right [drafts, tokens] is known and whose answer begins at `start`: how many
    drafts are kept. The target has computed all before `start`, and chosen its token."""
    kept, at, length = [], start - 1, right.shape[1]
    while at + 2 < length:
        room = min(most, length - 2 - at)
        count = next((draft for draft in range(room) if not right[draft, at + draft]), room)
        kept.append(count)
        at += count + 1
    return kept


def summary(rounds: Sequence[int], most: int) -> dict[str, Any]:
    kept = np.array(rounds)
    by_position = [round(float((kept > draft).mean()), 4) for draft in range(most)]
    return {"rounds": len(kept), "accepted": round(float(kept.mean()), 4), "by_position": by_position}


def evaluate(head: Head, target: Target, texts: Texts, length: int) -> dict[str, Any]:
    """By temperature and drafts of a round: how many of them are kept, and how often each."""
    drafts, lines = Drafts(head, target, texts), pack(texts, length).to(target.lm_head.device)
    rounds: dict[tuple[float, int], list[int]] = {}
    for first in range(0, len(lines), _LINES):
        part = lines[slice(first, first + _LINES)]
        right = drafts.right(part).cpu().numpy()
        numbers, answer = part.texts.cpu().numpy(), part.answer.cpu().numpy()
        for line, held in enumerate(numbers):
            for text in np.unique(held[held >= 0]):
                of_text = held == text
                start = int(np.argmax(answer[line, of_text]))
                for most in LENGTHS:
                    kept = accepted(right[:, line, of_text], start, most)
                    rounds.setdefault((float(texts.temperatures[text]), most), []).extend(kept)
    found: dict[str, Any] = {}
    for (temperature, most), kept in sorted(rounds.items()):
        found.setdefault(f"temperature {temperature:g}", {})[f"k={most}"] = summary(kept, most)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="JSON; printed too")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a line")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    target = load_target(args.model, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    found = evaluate(Head.load(args.head).to(device), target, Texts.load(args.texts), args.length)
    text = json.dumps(found, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
