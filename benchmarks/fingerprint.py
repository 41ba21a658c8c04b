"""The tokens and logprobs of a fixed piece of work, to the last bit: what a change that promises the same bits keeps.

    python -m benchmarks.fingerprint --out before.json [--model MODEL | --shape qwen3-0.6b] [--options JSON]
    python -m benchmarks.fingerprint --out after.json --against before.json       (with the new code)

Prompts of many lengths, greedy and seeded, filters, penalties, logprobs and prompt logprobs; long and short steps,
bursts, one and two steps in flight, with and without graphs. The second command names what differs and fails. With
--shape the weights are random, of a size a machine without models can make; on a GPU the same bits in any batch take
`--options '{"deterministic": true}'`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES, write_shape
from cadence import LLM, SamplingParams

# What the same work is run with. All are to give the same tokens; within one setting, the same bits before and after.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eager": {"enforce_eager": True},
    "bursts": {"num_scheduler_steps": 8},
    "small steps": {"max_num_batched_tokens": 64, "max_num_seqs": 8},
    "two in flight": {"async_scheduling": True},
    "one in flight": {"async_scheduling": False},
}
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards count their silver coins by candle light"


def prompts(count: int, shape: str) -> list[Any]:
    """Of 3 to some 300 words, or where there is a shape and no tokenizer, of as many tokens."""
    words = [100 + 7 * at % 1000 for at in range(19)] if shape else TEXT.split()
    lengths = [3 + (index * 37) % 300 for index in range(count)]
    chosen = [[words[(index + at) % len(words)] for at in range(n)] for index, n in enumerate(lengths)]
    return chosen if shape else [" ".join(some) for some in chosen]


def params(index: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 11, "top_p": 0.9},
        {"temperature": 1.0, "seed": 12, "top_k": 20, "logprobs": 3},
        {"temperature": 0.0, "logprobs": 5, "prompt_logprobs": 2},
        {"temperature": 0.7, "seed": 13, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
        {"temperature": 0.0, "min_tokens": 6, "logit_bias": {5: -3.0, 17: 2.0}},
        {"temperature": 1.0, "seed": 14, "min_p": 0.05, "ignore_eos": True},
    ]
    return SamplingParams(max_tokens=8 + (index * 13) % 56, **kinds[index % len(kinds)])


def work(llm: LLM, asked: list[Any]) -> list[dict[str, Any]]:
    outputs = llm.generate(asked, [params(index) for index in range(len(asked))], use_tqdm=False)
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "reason": output.outputs[0].finish_reason,
            "logprobs": _bits(output.outputs[0].logprobs),
            "prompt_logprobs": _bits(output.prompt_logprobs),
        }
        for output in outputs
    ]


def _bits(positions: Any) -> list[Any]:
    def entries(position: Any) -> dict[str, Any]:
        return {str(token): [entry.logprob.hex(), entry.rank] for token, entry in sorted(position.items())}

    return [position and entries(position) for position in positions or []]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = []
    for setting in before:
        for index, (old, new) in enumerate(zip(before[setting], after[setting], strict=True)):
            parts = [name for name in old if old[name] != new[name]]
            found += [f"{setting}, request {index}: {', '.join(parts)}"] if parts else []
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--shape", default="", choices=["", *SHAPES], help="random weights of this shape")
    parser.add_argument("--options", type=json.loads, default={}, help="of LLM, as JSON")
    parser.add_argument("--requests", type=int, default=28)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    asked = parser.parse_args()
    model, options, made = asked.model, asked.options, tempfile.TemporaryDirectory()
    if asked.shape:
        model = str(write_shape(asked.shape, Path(made.name)))
        options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 2048} | options
    found: dict[str, Any] = {}
    for name in asked.settings.split(","):
        with LLM(model, **options, **SETTINGS[name]) as llm:
            found[name] = work(llm, prompts(asked.requests, asked.shape))
        print(f"{name}: {sum(len(one['tokens']) for one in found[name])} tokens", flush=True)
    asked.out.write_text(json.dumps(found))
    if asked.against:
        differing = differences(json.loads(asked.against.read_text()), found)
        print("\n".join(differing) or "the same bits")
        sys.exit(bool(differing))


if __name__ == "__main__":
    main()
