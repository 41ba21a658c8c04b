"""onnxruntime as a peer of `benchmarks.embeddings`: the model exported from transformers, in float32 and with int8
matrices (dynamic quantisation), with the pooling and the norm that sentence-transformers' files of the model ask for.

Needs onnx, onnxruntime and transformers. Texts are sorted by their length and padded in batches, as its users do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer
from transformers import AutoModel

BATCH_SIZES = (8, 16, 32)
_MOST_TOKENS = 256  # of a text: sentence-transformers cuts this model's there
_INPUTS = ("input_ids", "attention_mask")


class Embedder(torch.nn.Module):
    """The mean of the hidden states, of length 1."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        counts = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * counts).sum(1) / counts.sum(1), dim=1)


def export(model: str, folder: Path) -> dict[str, Path]:
    """Files by their precision."""
    paths = {precision: folder / f"{precision}.onnx" for precision in ("float32", "int8")}
    example = torch.randint(5, 1000, (2, 16))
    axes: dict[str, Any] = {name: {0: "texts", 1: "tokens"} for name in _INPUTS}
    torch.onnx.export(
        Embedder(model),
        (example, torch.ones_like(example)),
        str(paths["float32"]),
        input_names=list(_INPUTS),
        output_names=["vectors"],
        dynamic_axes={**axes, "vectors": {0: "texts"}},
        dynamo=False,
        opset_version=17,
    )
    quantize_dynamic(paths["float32"], paths["int8"], weight_type=QuantType.QInt8)
    return paths


def ways_of(model: str, threads: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """By name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.enable_truncation(_MOST_TOKENS)
    tokenizer.enable_padding()
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            precision: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for precision, path in export(model, Path(folder)).items()
        }
    return {
        f"{precision} batch_size={size}": _way(session, tokenizer, size)
        for precision, session in sessions.items()
        for size in BATCH_SIZES
    }


def _way(session: Any, tokenizer: Tokenizer, size: int) -> Callable[[list[str]], np.ndarray]:
    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        vectors_np = np.concatenate(list(_vectors(session, tokenizer, [texts[number] for number in order], size)))
        back_np = np.empty_like(vectors_np)
        back_np[order] = vectors_np
        return back_np

    return embed


def _vectors(session: Any, tokenizer: Tokenizer, texts: list[str], size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(texts), size):
        batch = tokenizer.encode_batch_fast(texts[start : start + size])
        ids_np = np.array([each.ids for each in batch], dtype=np.int64)
        mask_np = np.array([each.attention_mask for each in batch], dtype=np.int64)
        (vectors_np,) = session.run(None, dict(zip(_INPUTS, (ids_np, mask_np), strict=True)))
        yield vectors_np
