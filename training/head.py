"""The head, in plain torch: what `cadence/models/heads/eagle3.py` computes, over whole texts and several drafts deep.

Names of modules are those of the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from cadence.config.hf import HFConfig
from training.lines import Lines
from training.target import Target

_COPIED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act",
)  # fmt: skip


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


@dataclass(frozen=True)
class Seen:
    """What attention sees, of the drafts so far."""

    same_text: torch.Tensor  # [N, L, L] bool
    cos: torch.Tensor  # [N, 1, L, D / 2]
    sin: torch.Tensor
    keys: list[torch.Tensor]  # of each draft, [N, KV heads, L, D]
    values: list[torch.Tensor]

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, heads, L, D]"""
        one, two = x.float().chunk(2, dim=-1)
        return torch.cat([one * self.cos - two * self.sin, two * self.cos + one * self.sin], dim=-1).to(x.dtype)

    def attend(self, q: torch.Tensor) -> torch.Tensor:
        """q [N, heads, L, D] of the newest draft -> [N, heads, L, D].

        Draft j at position p belongs to the round that began at p - j. There the target's states were known: it sees
        the keys that draft 0 made up to p - j, then the key of each draft i > 0 at p - j + i, its own the last.
        """
        count, heads, length, size = q.shape
        step, groups = len(self.keys) - 1, self.keys[0].shape[1]
        q = q.view(count, groups, heads // groups, length, size) * size**-0.5
        known = self.same_text.tril(-step)[:, None, None]
        scores = [(q @ self.keys[0][:, :, None].mT).masked_fill(~known, float("-inf"))]
        scores += [(q * self._shifted(self.keys, i)).sum(-1, keepdim=True) for i in range(1, step + 1)]
        weights = torch.cat(scores, dim=-1).softmax(-1, dtype=torch.float32).to(q.dtype)
        out = weights[..., :length] @ self.values[0][:, :, None]
        for i in range(1, step + 1):
            out = out + weights[..., length + i - 1, None] * self._shifted(self.values, i)
        return out.reshape(count, heads, length, size)

    def _shifted(self, of: list[torch.Tensor], draft: int) -> torch.Tensor:
        """[N, KV heads, 1, L, D]: what draft `draft` made in the round of each position."""
        return shifted(of[draft], len(of) - 1 - draft, dim=2)[:, :, None]


def shifted(x: torch.Tensor, by: int, dim: int) -> torch.Tensor:
    """Moved `by` places on; zeros come in."""
    if not by:
        return x
    moved = x.narrow(dim, 0, x.shape[dim] - by)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, by)), moved], dim=dim)


class SelfAttention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, self._size = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(2 * hidden, heads * self._size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, kv_heads * self._size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, kv_heads * self._size, bias=False)
        self.o_proj = nn.Linear(heads * self._size, hidden, bias=False)

    def forward(self, x: torch.Tensor, seen: Seen) -> torch.Tensor:
        """x [N, L, 2 * H] -> [N, L, H]; its keys and values join those seen."""
        q, k, v = (
            part(x).unflatten(-1, (-1, self._size)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen.keys.append(seen.rotated(k))
        seen.values.append(v)
        return self.o_proj(seen.attend(seen.rotated(q)).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Midlayer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(hidden, config["intermediate_size"])
        self._norm_before_residual = config["norm_before_residual"]

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor, seen: Seen) -> torch.Tensor:
        normed = self.hidden_norm(hidden)
        attended = self.self_attn(torch.cat([self.input_layernorm(embeds), normed], dim=-1), seen)
        x = (normed if self._norm_before_residual else hidden) + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    def __init__(self, config: dict[str, Any], ids: torch.Tensor) -> None:
        """config: as its file has it. ids [draft_vocab_size] int64, ascending: the tokens it knows."""
        super().__init__()
        self.config = config
        hidden = config["hidden_size"]
        self.aux_layers = tuple(config["eagle_aux_hidden_state_layer_ids"])
        self.fc = nn.Linear(len(self.aux_layers) * hidden, hidden, bias=False)
        self.midlayer = Midlayer(config)
        self.norm = RMSNorm(hidden, config["rms_norm_eps"])
        self.lm_head = nn.Linear(hidden, len(ids), bias=False)
        self.register_buffer("ids", ids, persistent=False)
        # The target's streams differ in size by orders of magnitude. While the head is trained, `fc` sees them divided
        # by what is usual for each entry; in files that is part of fc.
        self.register_buffer("stream_scale", torch.ones(len(self.aux_layers) * hidden), persistent=False)
        self.apply(_begin)

    def states(self, lines: Lines, embeds: torch.Tensor, streams: torch.Tensor, drafts: int) -> Iterator[torch.Tensor]:
        """embeds [N, L, H] of the tokens, streams [N, L, layers * H] of the target -> of each draft, states [N, L, H].

        At position p a draft computes the token of p + 1, and its logits are for that of p + 2. Draft 0 goes on from
        the target's states of p, every other from what the draft before it gave at p - 1.
        """
        embeds = shifted(embeds.flip(1), 1, dim=1).flip(1)
        seen = Seen(lines.same_text(), *self._rotation(lines.positions), [], [])
        hidden = self.fc(streams * self.stream_scale)
        for _ in range(drafts):
            out = self.midlayer(embeds, hidden, seen)
            yield out
            hidden = shifted(out, 1, dim=1)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., draft_vocab_size]"""
        return self.lm_head(self.norm(states))

    def scale_streams(self, streams: torch.Tensor) -> None:
        """streams [S, layers * H]: usual ones."""
        self.stream_scale.copy_(streams.float().square().mean(0).clamp(min=1e-8).rsqrt())

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size, theta = self.config["head_dim"], self.config["rope_theta"]
        steps = torch.arange(0, size, 2, device=positions.device, dtype=torch.float64)
        angles = positions[:, None, :, None] * theta ** (-steps / size)
        return angles.cos().float(), angles.sin().float()

    def save(self, directory: Path, dtype: torch.dtype) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = dict(self.state_dict())
        tensors["fc.weight"] = tensors["fc.weight"] * self.stream_scale
        tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in tensors.items()}
        ids = self.ids.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(self.config["vocab_size"], dtype=torch.bool).index_fill(0, ids, True)
        save_file(tensors, directory / "model.safetensors")
        config = self.config | {"torch_dtype": str(dtype).removeprefix("torch.")}
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    @staticmethod
    def load(directory: Path) -> Head:
        config = json.loads((directory / "config.json").read_text())
        tensors = load_file(directory / "model.safetensors")
        ids = tensors.pop("d2t") + torch.arange(config["draft_vocab_size"])
        tensors.pop("t2d")
        head = Head(config, ids)
        head.load_state_dict({name: value.float() for name, value in tensors.items()})
        return head


def head_config(hf: HFConfig, known: int, aux_layers: tuple[int, ...]) -> dict[str, Any]:
    """Of a head for this target; known: tokens."""
    return {key: hf[key] for key in _COPIED if hf.get(key) is not None} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "head_dim": hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        "rope_theta": _rope_theta(hf.raw),
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": known,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": list(aux_layers),
    }


def new_head(target: Target, ids: torch.Tensor, aux_layers: tuple[int, ...]) -> Head:
    """Random, except that it begins with the target's last norm and its rows of the tokens that it knows."""
    head = Head(head_config(target.hf, len(ids), aux_layers), ids)
    with torch.no_grad():
        head.norm.weight.copy_(target.final_norm)
        head.lm_head.weight.copy_(target.lm_head[ids.to(target.lm_head.device)])
    return head


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """An early, a middle and a late one, as EAGLE-3's authors chose them."""
    return (2, num_layers // 2, num_layers - 3)


def _begin(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)


def _rope_theta(raw: dict[str, Any]) -> float:
    rope = raw.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope of type {rope['rope_type']} is not supported")
    return float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
