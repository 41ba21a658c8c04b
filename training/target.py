"""The model that a head is trained for, frozen, in transformers: what it computes for packed texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from cadence import gguf
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.reference import find_model
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.source import WeightsSource
from training.lines import Lines

_TOKENS = 4096  # whose logits are held at once
_NOT_FOR_TRANSFORMERS = ("model_type", "partial_rotary_factor")


@dataclass(frozen=True)
class Target:
    hf: HFConfig
    model: Any  # transformers' causal language model

    @property
    def embedding(self) -> torch.Tensor:
        """[vocabulary, H]"""
        return self.model.get_input_embeddings().weight

    @property
    def lm_head(self) -> torch.Tensor:
        """[vocabulary, H]"""
        return self.model.get_output_embeddings().weight

    @property
    def final_norm(self) -> torch.Tensor:
        return self.model.model.norm.weight

    @torch.no_grad()
    def states(self, lines: Lines, layers: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """(the streams that enter these layers side by side [N, L, layers * H], the last states [N, L, H])."""
        length = lines.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=lines.ids.device).tril()
        mask = (lines.same_text() & causal)[:, None]
        found = self.model.model(
            input_ids=lines.ids,
            attention_mask=mask,
            position_ids=lines.positions,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states
        return torch.cat([found[layer] for layer in layers], dim=-1), found[-1]

    @torch.no_grad()
    def predictions(self, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [S, H] -> (probabilities of the tokens `ids` among all [S, len(ids)], likeliest tokens [S])."""
        shares, best = [], []
        for part in hidden.split(_TOKENS):
            logits = F.linear(part, self.lm_head)
            normaliser = logits.float().logsumexp(-1, keepdim=True)
            shares.append((logits[:, ids].float() - normaliser).exp())
            best.append(logits.argmax(-1))
        return torch.cat(shares), torch.cat(best)


def load_target(name: str, device: torch.device, dtype: torch.dtype) -> Target:
    """Any name that `cadence` knows a model by; weights of a GGUF file are widened."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    files = find_model(name)
    hf = load_hf_config(files)
    weights: WeightsSource = (
        gguf.open_weights(files.gguf, hf.raw) if files.gguf is not None else SafetensorsWeights(files.directory)
    )
    settings = {key: value for key, value in hf.raw.items() if key not in _NOT_FOR_TRANSFORMERS}
    config = AutoConfig.for_model(hf["model_type"], **settings)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict({name: weights.load(name) for name in weights.names()}, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{name}: transformers misses {missing} and does not know {unexpected}")
    model.tie_weights()
    return Target(hf, model.to(device=device, dtype=dtype).eval().requires_grad_(False))
