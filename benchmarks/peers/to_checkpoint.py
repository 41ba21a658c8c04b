"""Rebuilds the GGUF model as a Hugging Face folder in bfloat16: python -m benchmarks.peers.to_checkpoint FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.gguf import open_weights


def main() -> None:
    folder, files = Path(sys.argv[1]), find_model("smollm2")
    folder.mkdir(parents=True, exist_ok=True)
    hf, gguf = load_hf_config(files), files.gguf
    assert gguf is not None
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    fields = {name: value for name, value in hf.raw.items() if name != "partial_rotary_factor"}
    fields.update(architectures=["LlamaForCausalLM"], torch_dtype="bfloat16", tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1))
    weights = open_weights(gguf, hf.raw)
    tensors = {name: weights.load(name).to(torch.bfloat16).contiguous() for name in weights.names()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
