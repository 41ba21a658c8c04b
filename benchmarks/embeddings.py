"""Texts per second of an encoder: Cadence and its peers, each in a process of its own, turn by turn.

    python -m benchmarks.embeddings --model FOLDER [--peers sentence-transformers,onnxruntime] [--peer-python PYTHON]
        [--peer-libs FOLDER] [--texts 1000] [--rounds 3] [--out FILE]

Ratios are what counts: a noisy machine disturbs all. A peer runs by each of its batch sizes, sentence-transformers in
float32 and bfloat16, onnxruntime in float32 and int8, and the best of them counts. Peers may live in another
interpreter, which needs nothing of this project's, or in a folder that pip has filled (`pip install --target`). Prints
a JSON line per engine and appends them to FILE.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import turns
from benchmarks.names import names_of

_BOOK = Path(__file__).parent / "texts" / "the_ball_and_the_cross.txt"
_BATCH_SIZES = (8, 16, 32)
_FEWEST, _MOST = 3, 150  # words of a text
_SETTINGS: dict[str, dict[str, str]] = {
    "cadence": {},
    "cadence-bfloat16": {"dtype": "bfloat16"},
    "cadence-int8": {"quantization": "int8"},
}
_PEERS = ("sentence-transformers", "onnxruntime")
_WORK = "embed"

Embed = Callable[[list[str]], object]


def texts(count: int) -> list[str]:
    """Lengths of questions and paragraphs: most of 10 to 60 words."""
    words, rng, made = _BOOK.read_text(encoding="utf-8").split(), random.Random(0), []
    for _ in range(count):
        length = int(min(_MOST, max(_FEWEST, rng.lognormvariate(3.2, 0.8))))
        start = rng.randrange(len(words) - length)
        made.append(" ".join(words[start : start + length]))
    return made


def ways_of(engine: str, model: str, threads: int) -> dict[str, Embed]:
    """The engine, opened: by name, the ways it embeds texts."""
    importlib.import_module("torch").set_num_threads(threads)
    if engine in _SETTINGS:
        llm = importlib.import_module("cadence").LLM(model, **_SETTINGS[engine])
        return {"": lambda some: llm.embed(some, use_tqdm=False)}
    if engine == "onnxruntime":
        ways: dict[str, Embed] = importlib.import_module("benchmarks.peers.embed_onnx").ways_of(model, threads)
        return ways
    return {
        f"{dtype} batch_size={size}": embed
        for dtype in ("float32", "bfloat16")
        for size, embed in sentence_transformers_by_size(model, dtype).items()
    }


def sentence_transformers_by_size(model: str, dtype: str) -> dict[int, Embed]:
    package = importlib.import_module("sentence_transformers")
    opened = package.SentenceTransformer(model, device="cpu", model_kwargs={"dtype": dtype})

    def by(batch_size: int) -> Embed:
        return lambda some: opened.encode(some, batch_size=batch_size, normalize_embeddings=True)

    return {size: by(size) for size in _BATCH_SIZES}


def serve(engine: str, model: str, threads: int, count: int) -> None:
    ways, work = ways_of(engine, model, threads), texts(count)
    for embed in ways.values():
        embed(work[:64])
    turns.serve({_WORK: {name: partial(embed, work) for name, embed in ways.items()}})


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    options = ["--model", args.model, "--texts", str(args.texts), "--threads", str(args.threads)]

    def opened(engine: str, python: str, libs: str = "") -> turns.EngineProcess:
        paths = os.pathsep.join(path for path in (os.environ.get("PYTHONPATH"), libs) if path)
        run = ["env", f"PYTHONPATH={paths}", python, "-m", "benchmarks.embeddings"]
        return turns.EngineProcess(engine, [*run, "--serve", engine, *options])

    engines = [opened(engine, sys.executable) for engine in _SETTINGS]
    engines += [opened(peer, args.peer_python, args.peer_libs) for peer in args.peers]
    for _ in range(args.rounds):
        for engine in engines:
            engine.turn(_WORK)
    lines = [_line(engine, args.texts) for engine in engines]
    peers = {line["engine"]: line["texts_per_s"] for line in lines[len(_SETTINGS) :]}
    return [{**line, "texts": args.texts, "times": _times(line["texts_per_s"], peers)} for line in lines]


def _times(own: float, peers: dict[str, float]) -> dict[str, float]:
    return {name: round(own / rate, 2) for name, rate in peers.items()}


def _line(engine: turns.EngineProcess, count: int) -> dict[str, Any]:
    engine.end()
    way, taken = engine.best(_WORK)
    return {"engine": engine.engine, "way": way, "texts_per_s": round(count / taken, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with an encoder, as sentence-transformers has it")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with the peers")
    parser.add_argument("--peer-libs", default="", help="a folder of packages that peers import, too")
    parser.add_argument("--peers", type=names_of(_PEERS), default=",".join(_PEERS))
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # one engine, for the process that compares them
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.threads, args.texts)
        return
    turns.report(compare(args), args.model, args.out)


if __name__ == "__main__":
    main()
