"""Qwen2-VL and Qwen2.5-VL: pictures of any size in patches that turn by line and column, four of which become a vector;
tokens turn by time, line and column. The later tower has windows in most layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from cadence.config.files.qwen_vision import QwenVision, read_qwen_vision
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM, DecoderParts, PreNormLayer
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges
from cadence.models.interface.media import MediaContent, RopeRows
from cadence.models.interface.model import ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import GatedMLP, PlainMLP
from cadence.models.layers.norm import LayerNorm, Norm, RMSNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.layers.tower import Tower
from cadence.models.qwen2 import Qwen2ForCausalLM
from cadence.models.vision.clip import QUICK
from cadence.models.vision.language import seeing_parts, seeing_weights
from cadence.models.vision.llava import CLIP_SCALE
from cadence.models.vision.packed import packed_context
from cadence.models.vision.patches import PatchLinear
from cadence.models.vision.qwen_patches import axial_turns, cell_order, patches_of
from cadence.models.weight_map import Rule, WeightMap

_EPS = 1e-6
_QUICK_GELU = "quick_gelu"
_SECTIONS = [16, 24, 24]  # where a file says nothing of them


class QwenTower(Tower):
    reads = frozenset({IMAGE, VIDEO})
    rope_axes = 3
    like: torch.Tensor  # [0], of the dtype and on the device of what goes through the layers

    def __init__(self, build: BuildContext, vision: QwenVision, hidden: int) -> None:
        """hidden: of the language model"""
        super().__init__()
        build = replace(build, ranks=ONE_RANK)
        self.vision = vision
        self.register_buffer("like", torch.empty(0, dtype=build.dtype, device=build.device), persistent=False)
        self.patch = PatchLinear(build, 3 * vision.frames * vision.patch**2, vision.hidden)
        self.layers = nn.ModuleList(_layer(build, vision, index) for index in range(vision.layers))
        self.norm = _norm(build, vision)
        merged = vision.hidden * vision.merge**2
        self.project = PlainMLP(build, merged, merged, "gelu", out=hidden)

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        vision, like = self.vision, self.like
        order = cell_order([content.grid[1:3] for content in contents], vision.merge, vision.window)
        cells, places = (torch.from_numpy(each).to(like.device) for each in (order.cells_np, order.places_np))
        turns = axial_turns(places, vision.hidden // vision.heads)
        rope = RopeRows(turns, torch.arange(len(places), device=like.device))
        kv = self.layers[0].attn.kv
        whole = packed_context(order.wholes, kv, vision.layers, like, ops, rope)
        in_windows = packed_context(order.windows, kv, vision.layers, like, ops, rope) if order.windows else whole
        x = self.patch(torch.cat([self._patches(content).to(like.dtype) for content in contents]), whole)
        x = x.view(len(cells), -1)[cells].view(len(places), -1)
        residual = ops.zeros_like(x)
        nothing = torch.empty(0, dtype=torch.int64, device=like.device)
        inputs = ModelInputs(ids=nothing.int(), rope_positions=nothing)
        for index, layer in enumerate(self.layers):
            x, residual = layer(x, residual, inputs, whole if index in vision.full else in_windows)
        x = self.norm.add(x, residual, whole)[0]
        made = self.project(x.view(len(cells), -1), whole)
        return torch.empty_like(made).index_copy_(0, cells, made)

    def _patches(self, content: MediaContent) -> torch.Tensor:
        frames = torch.stack([CLIP_SCALE.of(frame) for frame in content.values])
        return patches_of(frames, self.vision.patch, self.vision.merge, self.vision.frames)

    def largest(self, length: int) -> MediaContent:
        cells = 1
        while cells**2 < length:
            cells += 1
        patches, pixels = cells * self.vision.merge, cells * self.vision.cell
        values = torch.zeros((1, pixels, pixels, 3), dtype=torch.uint8, device=self.like.device)
        return MediaContent(IMAGE, values, (1, patches, patches), cells**2)


def _layer(build: BuildContext, vision: QwenVision, index: int) -> PreNormLayer:
    dim = vision.hidden // vision.heads
    shape = AttentionShape(vision.heads, vision.heads, dim, dim**-0.5)
    spec = AttentionSpec(vision.hidden, shape, qkv_bias=True, out_bias=True)
    return PreNormLayer(
        Attention(build, index, spec, NoRotary()),
        _mlp(build, vision),
        _norm(build, vision),
        _norm(build, vision),
    )


def _mlp(build: BuildContext, vision: QwenVision) -> GatedMLP | PlainMLP:
    if vision.window:
        return GatedMLP(build, vision.hidden, vision.intermediate, vision.activation, bias=True)
    activation = "silu" if vision.activation == _QUICK_GELU else vision.activation
    return PlainMLP(build, vision.hidden, vision.intermediate, activation)


def _norm(build: BuildContext, vision: QwenVision) -> Norm:
    return RMSNorm(build, vision.hidden, _EPS) if vision.window else LayerNorm(build, vision.hidden, _EPS)


class Qwen2VLForConditionalGeneration(DecoderLM):
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        parts, self.weights = _seeing(hf, build, type(self).__name__)
        super().__init__(parts)


class Qwen2_5_VLForConditionalGeneration(DecoderLM):  # noqa: N801 - its name elsewhere
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        parts, self.weights = _seeing(hf, build, type(self).__name__)
        super().__init__(parts)


def _seeing(hf: ConfigView, build: BuildContext, architecture: str) -> tuple[DecoderParts, WeightMap]:
    text = Qwen2ForCausalLM(_text_view(hf), build)
    vision = read_qwen_vision({"vision_config": hf["vision_config"]}, architecture)
    parts = seeing_parts(text, QwenTower(build, vision, hf["hidden_size"]))
    return parts, seeing_weights(text.weights, _rules(vision), (("visual.", "model.visual."),))


def _text_view(hf: ConfigView) -> WithChanges:
    rope = {"mrope_section": _SECTIONS, **(hf.get("rope_parameters") or {})}
    tied = hf.get("tie_word_embeddings") or (hf.get("text_config") or {}).get("tie_word_embeddings")
    return WithChanges(hf, {"rope_parameters": rope, "tie_word_embeddings": bool(tied)})


def _rules(vision: QwenVision) -> tuple[Rule, ...]:
    source, target = "visual.blocks.*", "tower.layers.*"
    return (
        Rule(
            "visual.patch_embed.proj.weight",
            "tower.patch.weight",
            kernel=(vision.frames, vision.patch, vision.patch),
        ),
        Rule(f"{source}.attn.qkv.*", f"{target}.attn.qkv.*"),
        Rule(f"{source}.attn.proj.*", f"{target}.attn.out.*"),
        Rule(f"{source}.norm1.*", f"{target}.attn_norm.*"),
        Rule(f"{source}.norm2.*", f"{target}.mlp_norm.*"),
        *_mlp_rules(vision, f"{source}.mlp", f"{target}.mlp"),
        Rule("visual.merger.ln_q.*", "tower.norm.*"),
        Rule("visual.merger.mlp.0.*", "tower.project.up.*"),
        Rule("visual.merger.mlp.2.*", "tower.project.down.*"),
    )


def _mlp_rules(vision: QwenVision, source: str, target: str) -> tuple[Rule, ...]:
    if vision.window:
        return (
            Rule(f"{source}.gate_proj.*", f"{target}.gate_up.*", part="gate"),
            Rule(f"{source}.up_proj.*", f"{target}.gate_up.*", part="up"),
            Rule(f"{source}.down_proj.*", f"{target}.down.*"),
        )
    quick = QUICK if vision.activation == _QUICK_GELU else 1.0
    return (
        Rule(f"{source}.fc1.*", f"{target}.up.*", times=quick),
        Rule(f"{source}.fc2.weight", f"{target}.down.weight", times=1 / quick),
        Rule(f"{source}.fc2.bias", f"{target}.down.bias"),
    )
