"""Adapters on quantised matrices: as on the same matrices as numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.device.calls import Calls
from cadence.gguf import open_weights
from cadence.kernels.cpu.ops import CpuOps
from tests.helpers.adapters import AdaptedModel, Run, files_of, make_adapter
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.wide import each_once

pytestmark = pytest.mark.device

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dora": {"use_dora": True},
    "ends": {"target_modules": [*LINEARS, "embed_tokens", "lm_head"]},
    "saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
}


def dequantised(path: Path, to: Path) -> Path:
    """The model of a GGUF file, its matrices as numbers, in safetensors."""
    hf = load_hf_config(ModelFiles(str(path), path.parent, path))
    source = open_weights(path, hf.raw)
    to.mkdir()
    tensors = {name: source.load(name).float().clone() for name in source.names()}
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text(json.dumps(hf.raw | {"model_type": "llama"}))
    return to


@pytest.mark.parametrize(("config", "kind"), each_once([*CONFIGS], ["Q4_1", "Q6_K"]))
def test_equals_the_dequantised_model(kind: str, config: str, tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", kind)
    plain = dequantised(path, tmp_path / "plain")
    make_adapter(plain, tmp_path / "adapter", **{"r": 8, "target_modules": LINEARS} | CONFIGS[config])
    quantised = AdaptedModel(ModelFiles(str(path), path.parent, path), CpuOps(Calls(2)))
    numbers = AdaptedModel(files_of(plain), CpuOps(Calls(2)))
    ids = torch.randint(3, 300, (24,), generator=torch.Generator().manual_seed(7)).tolist()
    for model in (quantised, numbers):
        model.put(1, tmp_path / "adapter")
    (ours,), (theirs,) = (model.logits([Run(ids, 1)]) for model in (quantised, numbers))
    (bare,) = numbers.logits([Run(ids)])
    spread = theirs.std()
    assert (theirs - bare).abs().mean() > 0.2 * spread, "an adapter that changes nothing proves little"
    assert (ours - theirs).abs().mean() < 0.03 * spread, "products of quantised blocks round activations to 8 bits"


@pytest.mark.parametrize("packed", ["gguf", "float32"])
def test_a_copy_of_the_models_own_embedding_costs_nothing(
    packed: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """PEFT leaves one beside the A and B of an embedding; a row that is another counts."""
    if packed == "gguf":
        path = make_tiny_gguf(tmp_path / "tiny.gguf", "Q4_1")
        directory, files = dequantised(path, tmp_path / "plain"), ModelFiles(str(path), path.parent, path)
    else:
        directory = tiny_model("llama")
        files = files_of(directory)
    adapter = tmp_path / "adapter"
    make_adapter(directory, adapter, r=4, target_modules=["embed_tokens"])
    model = AdaptedModel(files, CpuOps(Calls(1)))
    model.put(0, adapter)
    embedding = next(a for path, a in model.lora._adaptations.items() if path == "embed")
    assert (embedding.changes, embedding.replaces) == (True, False)
    tensors = load_file(adapter / "adapter_model.safetensors")
    (own,) = (name for name in tensors if name.endswith("embed_tokens.base_layer.weight"))
    tensors[own][7] *= 2
    save_file(tensors, adapter / "adapter_model.safetensors")
    model.put(0, adapter)
    assert embedding.replaces
