"""Mamba and Mamba-2 on a CPU: Cadence and transformers on random weights of the 130M shapes, turn by turn.

    python -m benchmarks.state_models --model FOLDER [--make mamba|mamba2] [--rounds 3] [--out FILE]

--make fills FOLDER with random weights of that shape. Works: one request and eight at once, 32 tokens in and 64 out,
and one prompt of 512 tokens with one token out; greedy. Prints a JSON line per engine and work, and appends them to
FILE.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import turns

_CADENCE: dict[str, dict[str, Any]] = {
    "cadence-float32": {"dtype": "float32", "quantization": "none"},
    "cadence-bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "cadence-int8": {"quantization": "int8"},
}
_PEERS = {"transformers-float32": "float32", "transformers-bfloat16": "bfloat16"}
_WORKS = {"one": (1, 32, 64), "eight": (8, 32, 64), "prompt": (1, 512, 1)}  # requests, tokens in, tokens out
_VOCAB = 50_280

Answer = Callable[[list[list[int]], int], list[list[int]]]  # prompts, tokens out -> tokens of each


def make(kind: str, directory: Path) -> None:
    transformers, torch = map(importlib.import_module, ("transformers", "torch"))
    sizes = {"vocab_size": _VOCAB, "hidden_size": 768, "num_hidden_layers": 24, "tie_word_embeddings": True}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    if kind == "mamba":
        model = transformers.MambaForCausalLM(transformers.MambaConfig(state_size=16, **sizes, **ids))
    else:
        heads = {"num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1, "chunk_size": 256}
        model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**heads, **sizes, **ids))
    model.save_pretrained(directory)


def _cadence(model: str, options: dict[str, Any]) -> Answer:
    from cadence import LLM, SamplingParams

    llm = LLM(
        model, max_model_len=2048, max_num_seqs=8, skip_tokenizer_init=True, enable_prefix_caching=False, **options
    )

    def answer(prompts: list[list[int]], count: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        return [list(found.outputs[0].token_ids) for found in llm.generate(prompts, params, use_tqdm=False)]

    return answer


def _transformers(model: str, dtype: str) -> Answer:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def answer(prompts: list[list[int]], count: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        most = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        found = loaded.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **most)
        rows: list[list[int]] = found[:, ids.shape[1] :].tolist()
        return rows

    return answer


def _prompts(count: int, length: int, rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(100, _VOCAB) for _ in range(length)] for _ in range(count)]


def serve(engine: str, model: str, threads: int) -> None:
    importlib.import_module("torch").set_num_threads(threads)
    answer = _cadence(model, _CADENCE[engine]) if engine in _CADENCE else _transformers(model, _PEERS[engine])
    rng = random.Random(0)
    answer(_prompts(1, 8, rng), 4)

    def run(requests: int, length: int, count: int) -> object:
        found = answer(_prompts(requests, length, rng), count)
        assert [len(tokens) for tokens in found] == [count] * requests
        return found

    turns.serve({name: {"": lambda work=work: run(*work)} for name, work in _WORKS.items()})


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.state_models", f"--model={args.model}", f"--threads={args.threads}"]
    names = args.engines.split(",") if args.engines else [*_CADENCE, *_PEERS]
    engines = [turns.EngineProcess(engine, [*command, f"--serve={engine}"]) for engine in names]
    for _ in range(args.rounds):
        for work in _WORKS:
            for engine in engines:
                engine.turn(work)
    for engine in engines:
        engine.end()
    found = []
    for work, (requests, _, count) in _WORKS.items():
        peer = min(engine.best(work)[1] for engine in engines if engine.engine in _PEERS)
        for engine in engines:
            seconds = engine.best(work)[1]
            rate, ratio = round(requests * count / seconds, 1), round(peer / seconds, 2)
            line = {"work": work, "engine": engine.engine, "seconds": round(seconds, 3), "tokens_per_second": rate}
            found.append({**line, "times_best_transformers": ratio})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--make", choices=["mamba", "mamba2"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default="", help="of cadence and transformers, by comma; else all")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.threads)
        return
    if args.make:
        make(args.make, Path(args.model))
    turns.report(compare(args), args.model, args.out)


if __name__ == "__main__":
    main()
