"""The model answers prompts: `python -m training.write_texts --out texts.npz --minutes 3`.

Answers are drawn at several temperatures in turn and end where the model ends them, or at a limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from cadence import LLM, SamplingParams
from training.prompts import Turns, prompts
from training.texts import Text, Texts

TEMPERATURES = (0.0, 0.7, 1.0)
CHUNK = 4096  # conversations given to the engine at once
LONGEST_TURN = 1024  # tokens of what a user says, more than enough


@dataclass(slots=True)
class Conversation:
    turns: Turns
    temperature: float
    seed: int
    messages: list[dict[str, str]] = field(default_factory=list)


class Writer:
    def __init__(self, llm: LLM, length: int, max_tokens: int) -> None:
        """length: tokens of a prompt with its answer, at most; max_tokens: of an answer."""
        self._llm = llm
        self._length, self._max_tokens = length, max_tokens

    def answer(self, conversations: Sequence[Conversation]) -> tuple[list[Text], list[Conversation]]:
        """The next turn of each: (texts, whose prompts are the conversations so far; those that go on)."""
        for each in conversations:
            each.messages.append({"role": "user", "content": each.turns[len(each.messages) // 2]})
        answered = self._answer(conversations)
        going_on = [
            each
            for each, text in zip(conversations, answered, strict=True)
            if len(each.turns) > len(each.messages) // 2 and len(text.ids) + self._max_tokens // 2 < self._length
        ]
        return [text for text in answered if len(text.ids) - text.start > 1], going_on

    def _answer(self, conversations: Sequence[Conversation]) -> list[Text]:
        params = [
            SamplingParams(temperature=each.temperature, seed=each.seed, max_tokens=self._max_tokens)
            for each in conversations
        ]
        outputs = self._llm.chat([each.messages for each in conversations], params, use_tqdm=False)
        texts = []
        for each, output in zip(conversations, outputs, strict=True):
            prompt, answer = list(output.prompt_token_ids or ()), output.outputs[0]
            each.messages.append({"role": "assistant", "content": answer.text})
            ids = [*prompt, *answer.token_ids][: self._length]
            texts.append(Text(ids, min(len(prompt), len(ids)), each.temperature, each.seed))
        return texts


def write_texts(writer: Writer, conversations: Sequence[Conversation], seconds: float) -> list[Text]:
    """All their turns, or as many as the time is enough for."""
    began, longest, texts, tokens = time.monotonic(), 0.0, list[Text](), 0
    waiting, going_on = iter(conversations), list[Conversation]()
    while chunk := [*going_on, *islice(waiting, max(0, CHUNK - len(going_on)))]:
        elapsed = time.monotonic() - began
        if elapsed + longest > seconds:
            break
        written, going_on = writer.answer(chunk)
        took = time.monotonic() - began - elapsed
        longest = max(longest, took)
        texts += written
        new = sum(len(text.ids) - text.start for text in written)
        tokens += new
        print(f"{len(texts):,} texts, {tokens:,} tokens written, {new / took:,.0f} tokens/s", flush=True)
    return texts


def conversations(count: int, temperatures: Sequence[float], *, held_out: bool) -> list[Conversation]:
    """A prompt for each; held-out prompts are answered at every temperature."""
    if held_out:
        made = prompts(count, held_out=True)
        return [Conversation(turns, t, seed) for t in temperatures for seed, turns in enumerate(made)]
    made = prompts(count)
    return [Conversation(turns, temperatures[i % len(temperatures)], i) for i, turns in enumerate(made)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="texts to train on; *_held_out.npz beside them")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=3.0, help="for the texts to train on")
    parser.add_argument("--prompts", type=int, default=60_000, help="at most")
    parser.add_argument("--held-out", type=int, default=300, help="prompts")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a prompt and its answer")
    parser.add_argument("--max-tokens", type=int, default=640, help="tokens of an answer")
    args = parser.parse_args()
    with LLM(args.model, max_model_len=args.length + args.max_tokens + LONGEST_TURN) as llm:
        writer = Writer(llm, args.length, args.max_tokens)
        kept_apart = conversations(args.held_out, (0.0, 1.0), held_out=True)
        Texts.of(write_texts(writer, kept_apart, float("inf"))).save(held_out_path(args.out))
        asked = conversations(args.prompts, TEMPERATURES, held_out=False)
        Texts.of(write_texts(writer, asked, 60 * args.minutes)).save(args.out)


def held_out_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}_held_out.npz")


if __name__ == "__main__":
    main()
