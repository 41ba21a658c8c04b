"""Trains a head: `python -m training.train --texts texts.npz --out head --minutes 7`.

Several drafts deep, as EAGLE-3's authors do it: what a draft gives is what the next one starts from, while the tokens
are those of the text. The loss of each is its cross entropy with the target's probabilities. The target runs beside it.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from training.head import Head, default_aux_layers, new_head
from training.lines import Lines, endless, pack
from training.target import Target, load_target
from training.texts import Texts

DECAY = 0.8  # of a draft's weight in the loss, to that of the draft before
WARMUP = 100  # steps
REPORT_S, SAVE_S = 10.0, 60.0


@dataclass(frozen=True)
class Result:
    loss: torch.Tensor  # scalar
    right: torch.Tensor  # [drafts]: share of drafts that are the target's likeliest token


class Trainer:
    def __init__(self, head: Head, target: Target, drafts: int) -> None:
        self.head, self.target, self.drafts = head, target, drafts
        self._autocast = target.lm_head.device.type == "cuda"
        weights = [DECAY**draft for draft in range(drafts)]
        self._weights = [weight / sum(weights) for weight in weights]

    def loss(self, lines: Lines) -> Result:
        head, streams, labels = self.head, *self._of_target(lines)
        where, shares, best = labels
        total, right = torch.zeros((), device=streams.device), []
        with torch.autocast(streams.device.type, torch.bfloat16, enabled=self._autocast):
            embeds = F.embedding(lines.ids, self.target.embedding)
            for draft, states in enumerate(head.states(lines, embeds, streams, self.drafts)):
                logits = head.logits(states.flatten(0, 1)[where]).float()
                valid = lines.drafted(draft).flatten()[where].float()
                count = valid.sum().clamp(min=1)
                losses = F.cross_entropy(logits, shares, reduction="none")
                total = total + self._weights[draft] * (losses * valid).sum() / count
                right.append(((head.ids[logits.argmax(-1)] == best) * valid).sum() / count)
        return Result(total, torch.stack(right).detach())

    def begin(self, lines: Lines) -> None:
        streams, _ = self.target.states(lines, self.head.aux_layers)
        self.head.scale_streams(streams[lines.answer])

    def _of_target(self, lines: Lines) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(streams, (where drafts are made, as indices into [N * L]; the target's probabilities and likeliest tokens
        of the position after each of them))"""
        streams, hidden = self.target.states(lines, self.head.aux_layers)
        where = lines.drafted(0).flatten().nonzero()[:, 0]
        shares, best = self.target.predictions(hidden.flatten(0, 1)[where + 1], self.head.ids)
        return streams, (where, shares, best)


class Clock:
    """How much of the training is over: by time, or by steps."""

    def __init__(self, minutes: float, steps: int) -> None:
        self._began, self._seconds, self._steps = time.monotonic(), 60 * minutes, steps
        self._stopped = False
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._stop)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def share(self, step: int) -> float:
        """From 0 to 1; 1 = it ends here, as when it was told to stop."""
        by_steps = step / self._steps if self._steps else 0.0
        return 1.0 if self._stopped else min(1.0, max(self.elapsed / self._seconds, by_steps))

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True


class Progress:
    """Means since the last line."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since = clock, clock.elapsed
        self._results: list[Result] = []
        self._tokens = 0

    def add(self, result: Result, tokens: int) -> None:
        self._results.append(Result(result.loss.detach(), result.right))
        self._tokens += tokens

    @property
    def due(self) -> bool:
        return self._clock.elapsed - self._since > REPORT_S

    def report(self, step: int, lr: float) -> None:
        if not self._results:
            return
        loss = torch.stack([each.loss for each in self._results]).mean().item()
        right = torch.stack([each.right for each in self._results]).mean(0).tolist()
        now = self._clock.elapsed
        speed = self._tokens / max(now - self._since, 1e-9)
        shares = " ".join(f"{each:.3f}" for each in right)
        print(
            f"{now:6.0f} s  step {step}  lr {lr:.1e}  loss {loss:.3f}  right {shares}  {speed:,.0f} tokens/s",
            flush=True,
        )
        self._results, self._tokens, self._since = [], 0, now


def new_optimizer(head: Head, lr: float) -> torch.optim.AdamW:
    matrices = [parameter for parameter in head.parameters() if parameter.dim() == 2]
    vectors = [parameter for parameter in head.parameters() if parameter.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=matrices[0].is_cuda)


def step_once(trainer: Trainer, optimizer: torch.optim.AdamW, lines: Lines, lr: float) -> Result:
    for group in optimizer.param_groups:
        group["lr"] = lr
    result = trainer.loss(lines)
    optimizer.zero_grad(set_to_none=True)
    result.loss.backward()
    torch.nn.utils.clip_grad_norm_(trainer.head.parameters(), 1.0)
    optimizer.step()
    return result


def train(trainer: Trainer, lines: Lines, args: argparse.Namespace) -> None:
    """Saves the head every minute, and at the end."""
    clock = Clock(args.minutes, args.steps)
    optimizer, progress = new_optimizer(trainer.head, args.lr), Progress(clock)
    step, saved = 0, 0.0
    for batch in endless(lines, args.lines, args.seed):
        share = clock.share(step)
        if share >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * share))
        progress.add(step_once(trainer, optimizer, batch, lr), batch.ids.numel())
        step += 1
        if progress.due:
            progress.report(step, lr)
        if clock.elapsed - saved > SAVE_S:
            saved = clock.elapsed
            trainer.head.save(args.out, torch.bfloat16)
    progress.report(step, 0.0)
    trainer.head.save(args.out, torch.bfloat16)


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    texts = Texts.load(args.texts)
    target = load_target(args.model, device, dtype)
    ids = texts.frequent(args.vocabulary)
    print(
        f"{len(texts.ids):,} tokens; {len(ids):,} known ones are {texts.coverage(ids):.2%} of the answers", flush=True
    )
    lines = pack(texts, args.length).to(device)
    aux_layers = tuple(args.aux_layers or default_aux_layers(target.hf["num_hidden_layers"]))
    head = new_head(target, torch.from_numpy(ids), aux_layers).to(device)
    trainer = Trainer(head, target, args.drafts)
    trainer.begin(lines[: args.lines])
    if args.compile:
        head.midlayer.compile()
    train(trainer, lines, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the head")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--steps", type=int, default=0, help="at most; 0 = as many as there is time for")
    parser.add_argument("--lines", type=int, default=16, help="packed lines in a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a line")
    parser.add_argument("--drafts", type=int, default=5, help="deep")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that the head knows")
    parser.add_argument("--aux-layers", type=int, nargs="*", help="of the target, whose inputs the head begins with")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="the layer, with torch.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
