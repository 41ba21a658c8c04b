"""Pictures asked about on a CPU: Cadence and transformers on a model of SmolVLM-256M's shape, turn by turn.

    python -m benchmarks.vision --model FOLDER [--make] [--rounds 3] [--out FILE]

--make fills FOLDER with random weights of that shape. Works: one request with a picture of one tile (64 tokens), and
eight at once, each with a picture of its own; 64 tokens are written, greedy. Pictures are new in each turn: nothing is
found in a cache. Prints a JSON line per engine and work, and appends them to FILE.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns

_CADENCE: dict[str, dict[str, Any]] = {
    "cadence-float32": {"dtype": "float32"},
    "cadence-bfloat16": {"dtype": "bfloat16"},
    "cadence-int8": {"quantization": "int8"},
}
_PEERS = {"transformers-float32": "float32", "transformers-bfloat16": "bfloat16"}
_WORKS = {"one": 1, "eight": 8}
_NUM_TOKENS = 64
_SIDE = 512
_TEXT = "User:<image>Describe what you see in this picture.<end_of_utterance>\nAssistant:"

Answer = Callable[[list[Any]], list[list[int]]]  # pictures -> tokens of each


def make(directory: Path) -> None:
    """Random weights, and the files of a tiny model of the family with sizes changed."""
    transformers, tiny = map(importlib.import_module, ("transformers", "tests.helpers.tiny_vision"))
    tiny.make_vision("smolvlm", directory)
    config = transformers.AutoConfig.from_pretrained(directory)
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    text = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    more = {"num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_280, "max_position_embeddings": 8192}
    for section, changes in (
        (config.vision_config, vision | {"image_size": _SIDE, "patch_size": 16}),
        (config.text_config, text | more),
        (config, {"scale_factor": 4}),
    ):
        for name, value in changes.items():
            setattr(section, name, value)
    config.text_config.tie_word_embeddings = config.tie_word_embeddings = True
    importlib.import_module("torch").manual_seed(0)
    transformers.SmolVLMForConditionalGeneration(config).save_pretrained(directory)
    edge = {"longest_edge": _SIDE}
    sizes = {"size": edge, "max_image_size": edge, "do_image_splitting": False}
    for name, changes in (("preprocessor", sizes), ("processor", {"image_seq_len": (_SIDE // 16 // 4) ** 2})):
        path = directory / f"{name}_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _pictures(count: int, seed: int) -> list[Any]:
    image = importlib.import_module("PIL.Image")
    rng = np.random.default_rng(seed)
    return [image.fromarray(rng.integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)) for _ in range(count)]


def _cadence(model: str, options: dict[str, Any]) -> Answer:
    from cadence import LLM, SamplingParams

    llm = LLM(model, max_model_len=2048, enable_prefix_caching=False, **options)
    params = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True)

    def answer(pictures: list[Any]) -> list[list[int]]:
        prompts = [{"prompt": _TEXT, "multi_modal_data": {"image": picture}} for picture in pictures]
        return [list(found.outputs[0].token_ids) for found in llm.generate(prompts, params, use_tqdm=False)]

    return answer


def _transformers(model: str, dtype: str) -> Answer:
    import torch
    from transformers import AutoModelForImageTextToText

    processor = importlib.import_module("tests.helpers.vision_processors").open_processor(Path(model))
    loaded = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype).eval()

    @torch.inference_mode()
    def answer(pictures: list[Any]) -> list[list[int]]:
        texts, images = [_TEXT] * len(pictures), [[picture] for picture in pictures]
        inputs = processor(text=texts, images=images, return_tensors="pt", padding=True)
        most = {"max_new_tokens": _NUM_TOKENS, "min_new_tokens": _NUM_TOKENS}
        found = loaded.generate(**inputs, do_sample=False, **most)
        rows: list[list[int]] = found[:, -_NUM_TOKENS:].tolist()
        return rows

    return answer


def serve(engine: str, model: str, threads: int) -> None:
    importlib.import_module("torch").set_num_threads(threads)
    answer = _cadence(model, _CADENCE[engine]) if engine in _CADENCE else _transformers(model, _PEERS[engine])
    seeds = iter(range(1, 10_000))
    answer(_pictures(1, 0))
    turns.serve({name: {"": lambda n=count: answer(_pictures(n, next(seeds)))} for name, count in _WORKS.items()})


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.vision", f"--model={args.model}", f"--threads={args.threads}"]
    engines = [turns.EngineProcess(engine, [*command, f"--serve={engine}"]) for engine in (*_CADENCE, *_PEERS)]
    for _ in range(args.rounds):
        for work in _WORKS:
            for engine in engines:
                engine.turn(work)
    for engine in engines:
        engine.end()
    found = []
    for work in _WORKS:
        peer = min(engine.best(work)[1] for engine in engines if engine.engine in _PEERS)
        for engine in engines:
            seconds = engine.best(work)[1]
            found.append(
                {
                    "work": work,
                    "engine": engine.engine,
                    "seconds": round(seconds, 2),
                    "times_best_transformers": round(peer / seconds, 2),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.threads)
        return
    if args.make:
        make(Path(args.model))
    turns.report(compare(args), args.model, args.out)


if __name__ == "__main__":
    main()
