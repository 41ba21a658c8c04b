"""Heads for the tiny llama on disk, in every layout, with the same heads in plain torch; and ours loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.loader import load_model
from cadence.models.loader.load_head import Head, HeadSource, load_head
from tests.helpers import tiny_heads as heads
from tests.helpers.drafting import LENGTH
from tests.helpers.tiny_heads import CONFIG, Ends, Oracle, write

Made = tuple[str, Path, Oracle]  # (method, directory of the head or of the target with it, the same in plain torch)


class Target:
    """A tiny model, and heads for it."""

    def __init__(self, directory: Path, ops: Ops | None = None) -> None:
        self.directory = directory
        self.files = ModelFiles(str(directory), directory, None)
        self.config = ModelConfig(self.files, load_hf_config(self.files), "float32", LENGTH, 0, 20, "raw_logprobs")
        self.build = BuildContext(torch.float32, torch.device("cpu"), ops or ReferenceOps(), LENGTH)
        self.load = LoadConfig("auto", use_tqdm=False)
        self.model: DecoderLM = load_model(self.config, self.load, self.build)

    def head(self, method: str, directory: Path) -> Head:
        files = ModelFiles(str(directory), directory, None)
        return load_head(HeadSource(method, files, self.model, self.config), self.load, self.build)


def ends(directory: Path) -> Ends:
    held = load_file(directory / "model.safetensors")
    return Ends(held["model.embed_tokens.weight"], held["lm_head.weight"])


def eagle(target: Path, to: Path, **options: Any) -> Made:
    tensors, oracle = heads.eagle(ends(target), **options)
    return "eagle", write(to, tensors, CONFIG), oracle


def eagle_speculators(target: Path, to: Path) -> Made:
    tensors, config, oracle = heads.eagle_speculators(ends(target))
    return "eagle", write(to, tensors, config), oracle


def eagle3(target: Path, to: Path) -> Made:
    tensors, oracle = heads.eagle3(ends(target), "midlayer.", own_embed=False, before=False)
    config = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": heads.DRAFT_VOCAB}
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}}
    return "eagle3", write(to, tensors, config), oracle


def eagle3_speculators(target: Path, to: Path) -> Made:
    tensors, oracle = heads.eagle3(ends(target), "layers.0.", own_embed=True, before=True)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": ["LlamaForCausalLM"]}},
        "transformer_layer_config": {key: value for key, value in CONFIG.items() if key != "architectures"},
        "draft_vocab_size": heads.DRAFT_VOCAB,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    return "eagle3", write(to, tensors, config), oracle


def mtp(kind: str, own: bool = False) -> Callable[[Path, Path], Made]:
    """A copy of the target's files, with the module in them."""

    def make(target: Path, to: Path) -> Made:
        tensors, oracle = heads.mtp(kind, ends(target), own=own)
        shutil.copytree(target, to)
        save_file(load_file(to / "model.safetensors") | tensors, to / "model.safetensors")
        config = json.loads((to / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
        (to / "config.json").write_text(json.dumps(config))
        return "mtp", to, oracle

    return make


def medusa(kind: str) -> Callable[[Path, Path], Made]:
    def make(target: Path, to: Path) -> Made:
        tensors, oracle = heads.medusa(kind, ends(target))
        write(to, tensors, {"medusa_num_heads": 3, "medusa_num_layers": 2})
        if kind == "original":
            (to / "model.safetensors").unlink()
            torch.save(tensors, to / "medusa_lm_head.pt")
        return "medusa", to, oracle

    return make


LAYOUTS: dict[str, Callable[[Path, Path], Made]] = {
    "eagle": eagle,
    "eagle, shared embedding": lambda target, to: eagle(target, to, own=False, bias=False),
    "eagle of speculators": eagle_speculators,
    "eagle3": eagle3,
    "eagle3 of speculators": eagle3_speculators,
    "mtp as in DeepSeek": mtp("deepseek"),
    "mtp as in DeepSeek, with ends": mtp("deepseek", own=True),
    "mtp as in MiMo": mtp("mimo"),
    "mtp as in Qwen3-Next": mtp("qwen3_next"),
    "medusa of vLLM": medusa("vllm"),
    "medusa": medusa("original"),
    "medusa, shared head": medusa("shared"),
    "medusa of few tokens": medusa("mapped"),
}
