"""Pictures on a GPU with dummy weights of Qwen2.5-VL-7B's shape, beside what its two parts take by themselves.

    python -m benchmarks.gpu_vision [--requests 64] [--side 1008] [--tokens 16] [--out FILE]

Every request has a picture of its own and writes so many tokens. Prints a JSON line: seconds of all requests, of the
same prompts with plain tokens in place of pictures, of the tower on the same pictures, and the first over the sum of
the others. The best of three each.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe_machine
from cadence import LLM, SamplingParams
from cadence.models.interface.media import MediaContent
from cadence.models.layers.tower import Tower

_TEXT = {
    "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152_064, "max_position_embeddings": 32_768, "head_dim": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}  # fmt: skip
_VISION = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
    "out_hidden_size": 3584, "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    "temporal_patch_size": 2,
}  # fmt: skip
_PROMPT = "<|vision_start|><|image_pad|><|vision_end|>what is the quick brown fox"
_FEW = {"text": {"num_hidden_layers": 2, "vocab_size": 1024}, "vision": {"depth": 2, "fullatt_block_indexes": [1]}}


def write_model(directory: Path, tiny: bool) -> None:
    """Configuration and tokenizer; weights are made up."""
    importlib.import_module("tests.helpers.tiny_qwen_vl").make_qwen_vl("2.5", directory)
    (directory / "model.safetensors").unlink()
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= _TEXT | (_FEW["text"] if tiny else {})
    config["text_config"].pop("layer_types", None)
    config["vision_config"] |= _VISION | (_FEW["vision"] if tiny else {})
    path.write_text(json.dumps(config))
    path = directory / "preprocessor_config.json"
    sizes = {"patch_size": 14, "merge_size": 2, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 16_384}
    settings = {key: value for key, value in json.loads(path.read_text()).items() if key != "size"}
    path.write_text(json.dumps(settings | sizes))


def best(run: Callable[[], object], rounds: int = 3) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def encoded(tower: Tower, ops: Any, pictures: list[np.ndarray], length: int) -> None:
    """In the batches that a step of an engine has."""
    patches = pictures[0].shape[0] // 14, pictures[0].shape[1] // 14
    device = next(tower.parameters()).device
    for start in range(0, len(pictures), 4):
        values = [torch.from_numpy(each[None]).to(device) for each in pictures[start : start + 4]]
        with torch.inference_mode():
            tower.encode([MediaContent("image", each, (1, *patches), length) for each in values], ops)
    torch.cuda.synchronize() if device.type == "cuda" else None


def measure(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    options = {"device": args.device} if args.device else {}
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    llm = LLM(folder, load_format="dummy", dtype=dtype, max_model_len=4096, enable_prefix_caching=False, **options)
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)

    def pictures() -> list[np.ndarray]:
        return [rng.integers(0, 256, (args.side, args.side, 3), dtype=np.uint8) for _ in range(args.requests)]

    turns = iter([pictures() for _ in range(4)])  # none is found in the encoder cache
    lengths: list[int] = []

    def asked() -> None:
        prompts = [{"prompt": _PROMPT, "multi_modal_data": {"image": each}} for each in next(turns)]
        found = llm.generate(prompts, params, use_tqdm=False)
        lengths.append(len(found[0].prompt_token_ids))

    def plain() -> None:
        ids = rng.integers(10, 300, (args.requests, lengths[0])).tolist()
        llm.generate([{"prompt_token_ids": each} for each in ids], params, use_tqdm=False)

    asked()
    with_pictures = best(asked)
    plain()
    language = best(plain)
    tower = next(each for each in gc.get_objects() if isinstance(each, Tower) and each.reads)
    ops = _ops_of()
    own, length = pictures(), (args.side // 28) ** 2
    encoded(tower, ops, own, length)
    encoder = best(lambda: encoded(tower, ops, own, length))
    return {
        "requests": args.requests, "side": args.side, "prompt_tokens": lengths[0], "tokens": args.tokens,
        "seconds": round(with_pictures, 3), "language_seconds": round(language, 3),
        "encoder_seconds": round(encoder, 3), "times_parts": round(with_pictures / (language + encoder), 3),
    }  # fmt: skip


def _ops_of() -> Any:
    """Those of the engine."""
    media = importlib.import_module("cadence.runner.features.media.vectors").TowerVectors
    return next(each for each in gc.get_objects() if isinstance(each, media))._ops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--side", type=int, default=1008)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="few layers: to see that it runs")
    parser.add_argument("--device", default="")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), args.tiny)
        line = json.dumps({**describe_machine(), **measure(args, folder)})
    print(line, flush=True)
    if args.out:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
