"""A Whisper model of CTranslate2 (model.bin, config.json, tokenizer.json) -> a folder as transformers writes it.

    python -m benchmarks.whisper_from_ct2 FROM TO

For measuring and trying out speech where models are at hand in that form alone. Weights of 16 or 32 bits are read; what
their converter fused (queries, keys and values of an attention) is taken apart again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors.numpy import save_file

VERSION = 6
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 4: np.float16}
MAX_POSITIONS = 448  # of the decoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    convert(args.source, args.target)


def convert(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with open(source / "model.bin", "rb") as file:
        stored = dict(read_arrays(file))
    weights = dict(renamed(stored))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tokens = _special_tokens(source / "tokenizer.json")
    config = model_config(stored, tokens)
    _write(target / "config.json", config)
    _write(target / "generation_config.json", generation_config(described, tokens))
    _write(target / "preprocessor_config.json", feature_config(config["num_mel_bins"]))
    _write(target / "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"})
    shutil.copyfile(source / "tokenizer.json", target / "tokenizer.json")


def read_arrays(file: BinaryIO) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays, in file order."""

    def number(form: str) -> int:
        return int(struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0])

    def text() -> str:
        return file.read(number("H"))[:-1].decode()

    version = number("I")
    kind, _ = text(), number("I")
    if version != VERSION or kind != "WhisperSpec":
        raise SystemExit(f"expected a WhisperSpec of version {VERSION}, found {kind} of version {version}")
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind_of_number = TYPES[number("B")]
        yield name, np.frombuffer(file.read(number("I")), kind_of_number).reshape(shape)


def renamed(stored: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The model's arrays under transformers' names."""
    yield "model.decoder.embed_tokens.weight", stored["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_positions.weight", stored[f"{side}/position_encodings/encodings"]
        yield from _norm(stored, f"{side}/layer_norm", f"model.{side}.layer_norm")
        for layer in range(num_layers(stored, side)):
            yield from _layer(stored, f"{side}/layer_{layer}", f"model.{side}.layers.{layer}")
    for part in ("conv1", "conv2"):
        yield from _linear(stored, f"encoder/{part}", f"model.encoder.{part}")


def num_layers(stored: dict[str, np.ndarray], side: str) -> int:
    return sum(name.startswith(f"{side}/layer_") and name.endswith("ffn/linear_0/weight") for name in stored)


def _layer(stored: dict[str, np.ndarray], old: str, new: str) -> Iterator[tuple[str, np.ndarray]]:
    yield from _attention(stored, f"{old}/self_attention", f"{new}.self_attn", fused=("linear_0",), out="linear_1")
    yield from _norm(stored, f"{old}/self_attention/layer_norm", f"{new}.self_attn_layer_norm")
    if f"{old}/attention/linear_0/weight" in stored:
        crossed = ("linear_0", "linear_1")
        yield from _attention(stored, f"{old}/attention", f"{new}.encoder_attn", fused=crossed, out="linear_2")
        yield from _norm(stored, f"{old}/attention/layer_norm", f"{new}.encoder_attn_layer_norm")
    yield from _linear(stored, f"{old}/ffn/linear_0", f"{new}.fc1")
    yield from _linear(stored, f"{old}/ffn/linear_1", f"{new}.fc2")
    yield from _norm(stored, f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")


def _attention(
    stored: dict[str, np.ndarray], old: str, new: str, *, fused: tuple[str, ...], out: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Queries, keys and values one below the other in the arrays `fused`. Keys have no bias: theirs is zeros."""
    for kind in ("weight", "bias"):
        whole_np = np.concatenate([stored[f"{old}/{part}/{kind}"] for part in fused])
        for name, part_np in zip(("q_proj", "k_proj", "v_proj"), np.split(whole_np, 3), strict=True):
            if (name, kind) != ("k_proj", "bias"):
                yield f"{new}.{name}.{kind}", np.ascontiguousarray(part_np)
    yield from _linear(stored, f"{old}/{out}", f"{new}.out_proj")


def _linear(stored: dict[str, np.ndarray], old: str, new: str) -> Iterator[tuple[str, np.ndarray]]:
    for kind in ("weight", "bias"):
        yield f"{new}.{kind}", stored[f"{old}/{kind}"]


def _norm(stored: dict[str, np.ndarray], old: str, new: str) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{new}.weight", stored[f"{old}/gamma"]
    yield f"{new}.bias", stored[f"{old}/beta"]


def model_config(stored: dict[str, np.ndarray], tokens: dict[str, int]) -> dict[str, Any]:
    vocab_size, width = stored["decoder/embeddings/weight"].shape
    hidden = stored["encoder/layer_0/ffn/linear_0/weight"].shape[0]
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", num_layers(stored, side)),
            ("attention_heads", int(stored[f"{side}/num_heads"])),
            ("ffn_dim", hidden),
        )
    }
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "d_model": width,
        "vocab_size": vocab_size,
        "num_mel_bins": stored["encoder/conv1/weight"].shape[1],
        "max_source_positions": stored["encoder/position_encodings/encodings"].shape[0],
        "max_target_positions": MAX_POSITIONS,
        "decoder_start_token_id": tokens["<|startoftranscript|>"],
        "bos_token_id": tokens["<|endoftext|>"],
        "eos_token_id": tokens["<|endoftext|>"],
        "pad_token_id": tokens["<|endoftext|>"],
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        **sides,
    }


def generation_config(described: dict[str, Any], tokens: dict[str, int]) -> dict[str, Any]:
    is_multilingual = tokens["<|endoftext|>"] == 50257
    config = {
        "decoder_start_token_id": tokens["<|startoftranscript|>"],
        "bos_token_id": tokens["<|endoftext|>"],
        "eos_token_id": tokens["<|endoftext|>"],
        "pad_token_id": tokens["<|endoftext|>"],
        "no_timestamps_token_id": tokens["<|notimestamps|>"],
        "prev_sot_token_id": tokens["<|startofprev|>"],
        "max_length": MAX_POSITIONS,
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
        "suppress_tokens": described["suppress_ids"],
        "begin_suppress_tokens": described["suppress_ids_begin"],
        "alignment_heads": described["alignment_heads"],
        "is_multilingual": is_multilingual,
    }
    if is_multilingual:
        named = {token: name for name, token in tokens.items()}
        config["lang_to_id"] = {named[token]: token for token in described["lang_ids"] if token in named}
        config["task_to_id"] = {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return config


def feature_config(num_mels: int) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": num_mels,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "n_samples": 480_000,
        "nb_max_frames": 3000,
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _special_tokens(path: Path) -> dict[str, int]:
    return {each["content"]: each["id"] for each in json.loads(path.read_text(encoding="utf-8"))["added_tokens"]}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
