"""What it costs to hold outputs to grammars, and what the tokens that they force save.

    python -m benchmarks.grammars [--streams 32] [--out 96] [--rounds 3] [--shape llama-3.1-8b --tokenizer FOLDER]

SmolLM2, or a well-known shape with dummy weights and a tokenizer from a folder; greedy, all streams at once, each with
a schema of its own; the same without, side by side in one process, the best of some rounds. One JSON line each.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.gpu import open_shape
from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.structured.grammar import Matcher

WORDS = ("name", "city", "street", "colour", "animal", "product", "company", "language", "country", "food")
FLAGS = ("is_available_for_delivery", "requires_special_handling", "has_been_inspected_by_customs",
         "contains_hazardous_material", "was_returned_by_customer", "is_eligible_for_discount")  # fmt: skip


def of_stream(stream: int) -> dict[str, Any]:
    """Strings enough that no output is complete before its length."""
    names = [f"{word}_{stream}_{place}" for place, word in enumerate(WORDS)]
    return _object({name: {"type": "string"} for name in names})


def forcing() -> dict[str, Any]:
    return _object({name: {"type": "boolean"} for name in FLAGS})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Bench:
    def __init__(self, llm: LLM, rounds: int) -> None:
        self._llm = llm
        self._rounds = rounds
        self._ahead = Matcher.ahead

    def best(self, schemas: list[dict[str, Any] | None], out: int, jumps: bool = True) -> tuple[float, float]:
        """-> (tokens a second, seconds) of the best round"""
        Matcher.ahead = self._ahead if jumps else _nothing  # type: ignore[method-assign]
        found = [self._round(schemas, out) for _ in range(1 + self._rounds)][1:]
        Matcher.ahead = self._ahead  # type: ignore[method-assign]
        return max(found)

    def _round(self, schemas: list[dict[str, Any] | None], out: int) -> tuple[float, float]:
        prompts = [f"Describe thing number {stream} as JSON." for stream in range(len(schemas))]
        params = [self._params(schema, out) for schema in schemas]
        start = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        completions = [output.outputs[0] for output in outputs]
        if failed := [each.stop_reason for each in completions if each.finish_reason == "error"]:
            raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
        return sum(len(each.token_ids) for each in completions) / seconds, seconds

    @staticmethod
    def _params(schema: dict[str, Any] | None, out: int) -> SamplingParams:
        if schema is None:
            return SamplingParams(temperature=0, max_tokens=out, ignore_eos=True)
        asked = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
        return SamplingParams(temperature=0, max_tokens=out, structured_outputs=asked)


def _nothing(matcher: Matcher, most: int) -> list[int]:
    return []


def open_model(asked: argparse.Namespace) -> LLM:
    sizes = {"max_model_len": 1024, "max_num_seqs": max(asked.streams, 16)}
    if not asked.shape:
        return LLM("smollm2", **sizes)
    known = {"tokenizer": asked.tokenizer, "skip_tokenizer_init": False, "hf_overrides": {"eos_token_id": 2}}
    return open_shape(asked.shape, {**known, **sizes})[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--out", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", default="")
    parser.add_argument("--tokenizer", default="")
    asked = parser.parse_args()
    print(json.dumps({"machine": describe_machine(), **vars(asked)}))
    bench = Bench(open_model(asked), asked.rounds)
    streams = [of_stream(stream) for stream in range(asked.streams)]
    free, _ = bench.best([None] * asked.streams, asked.out)
    for jumps in (True, False):
        rate, _ = bench.best([*streams], asked.out, jumps)
        say(f"{asked.streams} streams with a schema each", jumps, rate, free)
    alone, _ = bench.best([None], asked.out)
    for jumps in (True, False):
        say("one stream, names are most of it", jumps, bench.best([forcing()], asked.out, jumps)[0], alone)
    first = [bench.best([schema], 1)[1] * 1e3 for schema in (None, streams[0])]
    print(json.dumps({"case": "first token, ms", "free": round(first[0], 2), "schema known": round(first[1], 2)}))


def say(case: str, jumps: bool, rate: float, free: float) -> None:
    figures = {"tokens_per_second": round(rate, 1), "free": round(free, 1), "ratio": round(rate / free, 3)}
    print(json.dumps({"case": case, "forced_tokens_are_drafts": jumps, **figures}), flush=True)


if __name__ == "__main__":
    main()
