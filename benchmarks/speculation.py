"""Decoding with and without drafts, side by side in one process: the same tokens, and how much sooner.

    python -m benchmarks.speculation [--model smollm2] [--config JSON] [--cases quote,agent] [--rounds 4] [--out 256]

Cases: quote = a text to be repeated, edit = code to be rewritten with one change, story = nothing to look up, agent =
one question again and again, with other data each time. One JSON line each. The engines take turns, and the best round
of each counts; the first rounds are those in which the number of drafts settles, and are given too. Prompts are in the
cache by then. All but agent ask the same in each round, which a method that looks into earlier requests knows by then.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from cadence import LLM, RequestOutput, SamplingParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 16, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
Prompts = Callable[[int], str]  # by number
CODE = Path(__file__).parent.parent / "cadence" / "scheduler" / "queue.py"
TEXT = Path(__file__).parent.parent / "docs" / "the_step.md"


def cases() -> dict[str, Prompts]:
    """Prompts by round."""
    code, text = CODE.read_text(encoding="utf-8")[:1800], TEXT.read_text(encoding="utf-8")[:1800]
    edit = f"Rewrite this file, with the class WaitingQueue renamed to Queue. Write the whole file.\n\n{code}"
    return {
        "quote": lambda index: f"Repeat the following text exactly, word for word.\n\n{text}",
        "edit": lambda index: edit,
        "story": lambda index: "Write a long story about a lighthouse keeper who finds a strange machine on the beach.",
        "agent": agent_prompt,
    }


def agent_prompt(index: int) -> str:
    """A question whose answers are alike."""
    name = ("Ana", "Bo", "Chen", "Dora", "Emil", "Fay", "Gil", "Hana")[index % 8]
    return (
        f"Write a polite letter to {name}, whose order number {4711 + 13 * index} is {2 + index} days late because of "
        "a storm. Explain what happens next."
    )


def timed(llm: LLM, prompts: list[str], max_tokens: int) -> tuple[float, list[RequestOutput]]:
    """Seconds with the prompt in the cache."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    llm.chat(messages, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.chat(messages, params, use_tqdm=False)
    return time.perf_counter() - start, outputs


def measure(plain: LLM, drafting: LLM, name: str, prompt: Prompts, asked: argparse.Namespace) -> dict[str, Any]:
    times: dict[str, list[float]] = {"plain": [], "drafting": []}
    for index in range(asked.rounds):
        prompts = [prompt(index * asked.batch + each) for each in range(asked.batch)]
        seconds, expected = timed(plain, prompts, asked.out)
        times["plain"].append(seconds)
        seconds, outputs = timed(drafting, prompts, asked.out)
        times["drafting"].append(seconds)
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected], "other tokens"
    tokens, stats = asked.batch * asked.out, outputs[0].speculation
    return {
        "case": name,
        "batch": asked.batch,
        "plain_tokens_per_second": round(tokens / min(times["plain"]), 1),
        "tokens_per_second": round(tokens / min(times["drafting"]), 1),
        "ratio": round(min(times["plain"]) / min(times["drafting"]), 2),
        "ratio_by_round": [round(a / b, 2) for a, b in zip(times["plain"], times["drafting"], strict=True)],
        "drafted": stats.num_drafted,
        "accepted": stats.num_accepted,
        "forwards_with_drafts": stats.num_forwards,
    }


def run(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    options = {"model": asked.model, "max_model_len": 2048}
    plain, drafting = LLM(**options), LLM(**options, speculative_config=json.loads(asked.config))
    yield {"machine": describe_machine(), "model": asked.model, "config": json.loads(asked.config)}
    for name in asked.cases.split(","):
        yield measure(plain, drafting, name, cases()[name], asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--config", default=json.dumps(NGRAM))
    parser.add_argument("--cases", default=",".join(cases()))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--out", type=int, default=256)
    for line in run(parser.parse_args()):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
