"""Tiny decoders with other heads than logits, saved as users' models are, and the same in transformers."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import make_tiny, randomise, save_tokenizer


@same_every_time
def make_headed(family: str, directory: Path, auto: str, **changes: Any) -> Any:
    """Saves what transformers' class `auto` makes of the family's configuration -> that model"""
    import transformers

    make_tiny(family, directory / "causal")
    config = transformers.AutoConfig.from_pretrained(directory / "causal")
    for name, value in changes.items():
        setattr(config, name, value)
    model = getattr(transformers, auto).from_config(config, attn_implementation="eager").eval()
    randomise(model, 0.15, 0.08)
    _save(model, directory)
    return model


class RewardModel(nn.Module):
    """As the code that comes with Qwen's reward models has it: two maps of every hidden state."""

    def __init__(self, config: Any, labels: int) -> None:
        from transformers import AutoModel

        super().__init__()
        self.model = AutoModel.from_config(config, attn_implementation="eager")
        size = config.hidden_size
        self.score = nn.Sequential(
            OrderedDict({"0": nn.Linear(size, size), "1": nn.ReLU(), "2": nn.Linear(size, labels)})
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.score(self.model(ids).last_hidden_state)


@same_every_time
def make_reward(directory: Path, architecture: str, labels: int) -> RewardModel:
    from safetensors.torch import save_file
    from transformers import AutoConfig

    make_tiny("qwen2", directory / "causal")
    model = RewardModel(AutoConfig.from_pretrained(directory / "causal"), labels).eval()
    randomise(model, 0.15, 0.08)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, directory / "model.safetensors")
    config = json.loads((directory / "causal" / "config.json").read_text()) | {"architectures": [architecture]}
    (directory / "config.json").write_text(json.dumps(config))
    save_tokenizer(directory)
    return model


def add_modules(directory: Path, *modules: tuple[str, dict[str, Any]]) -> None:
    """sentence-transformers' files: (type, config) of each module after the model; a Dense one is made with random
    weights."""
    from safetensors.torch import save_file

    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, (kind, config) in enumerate(modules, 1):
        folder = f"{index}_{kind}"
        listed.append(
            {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        )
        (directory / folder).mkdir(parents=True)
        (directory / folder / "config.json").write_text(json.dumps(config))
        if kind == "Dense":
            save_file(_dense(config, index), directory / folder / "model.safetensors")
    (directory / "modules.json").write_text(json.dumps(listed))


def _dense(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (config["out_features"], config["in_features"])
    made = {"linear.weight": torch.randn(shape, generator=generator) * 0.2}
    return made | {"linear.bias": torch.randn(shape[:1], generator=generator)} if config.get("bias", True) else made


def _save(model: Any, directory: Path) -> None:
    model.save_pretrained(directory)
    save_tokenizer(directory)
