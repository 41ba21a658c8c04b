"""Sentences a second of a translator (Marian): Cadence and transformers, each in a process of its own, turn by turn.

    python -m benchmarks.translation --model FOLDER [--rounds 5] [--out FILE]

Sixteen sentences at once (of benchmarks/texts/french.txt: for opus-mt-fr-en), greedy. Prints a JSON line per engine and
appends them to FILE.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import turns

_TEXTS = Path(__file__).parent / "texts" / "french.txt"
_BATCH = 16
_MOST = 128  # tokens of a translation
_CADENCE: dict[str, dict[str, str]] = {
    "cadence-float32": {"dtype": "float32"},
    "cadence-int8": {"quantization": "int8"},
}
_PEER = "transformers-float32"
_WORK = "translate"

Translate = Callable[[list[str]], list[str]]


def opened(engine: str, model: str, threads: int) -> Translate:
    importlib.import_module("torch").set_num_threads(threads)
    return _cadence(model, _CADENCE[engine]) if engine in _CADENCE else _transformers(model)


def _cadence(model: str, options: dict[str, str]) -> Translate:
    from cadence import LLM, SamplingParams

    llm, params = LLM(model, **options), SamplingParams(temperature=0, max_tokens=_MOST)

    def translate(texts: list[str]) -> list[str]:
        llm.reset_prefix_cache()  # what encoders have read is cached by content
        return [found.outputs[0].text for found in llm.generate(texts, params, use_tqdm=False)]

    return translate


def _transformers(model: str) -> Translate:
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(model)
    loaded = MarianMTModel.from_pretrained(model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def translate(texts: list[str]) -> list[str]:
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        found = loaded.generate(**inputs, num_beams=1, do_sample=False, max_length=_MOST)
        return list(tokenizer.batch_decode(found, skip_special_tokens=True))

    return translate


def serve(engine: str, model: str, threads: int) -> None:
    translate, texts = opened(engine, model, threads), _TEXTS.read_text(encoding="utf-8").splitlines()[:_BATCH]
    translate(texts)
    turns.serve({_WORK: {"": lambda: translate(texts)}})


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.translation", f"--model={args.model}", f"--threads={args.threads}"]
    engines = [turns.EngineProcess(engine, [*command, f"--serve={engine}"]) for engine in (*_CADENCE, _PEER)]
    for _ in range(args.rounds):
        for engine in engines:
            engine.turn(_WORK)
    for engine in engines:
        engine.end()
    taken = {engine.engine: engine.best(_WORK)[1] for engine in engines}
    return [
        {"engine": name, "sentences_per_s": round(_BATCH / seconds, 2), "times_peer": round(taken[_PEER] / seconds, 2)}
        for name, seconds in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # one engine, for the process that compares them
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.threads)
        return
    turns.report(compare(args), args.model, args.out)


if __name__ == "__main__":
    main()
