"""Qwen2-Audio: Whisper's encoder, two of whose positions become a vector, beside a Qwen 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from cadence.config.files.qwen_audio import QwenAudio, read_qwen_audio
from cadence.core.inputs.media import AUDIO
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.ops import Ops
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.interface.encoder import EncoderBatch
from cadence.models.interface.media import MediaContent
from cadence.models.interface.model import ModelInputs
from cadence.models.layers.linear import Linear
from cadence.models.layers.tower import Tower
from cadence.models.seq2seq.sides import SideDims, encoder_layers, side_rules
from cadence.models.seq2seq.whisper import TAPS, SoundFront
from cadence.models.vision.language import language_model, seeing_parts, seeing_weights
from cadence.models.vision.packed import packed_context
from cadence.models.weight_map import Rule


class QwenAudioTower(Tower):
    """A content is features [mels, frames] float32, of its sound and of as much silence after it as the last position
    hears; its grid: positions of the sound."""

    reads = frozenset({AUDIO})
    like: torch.Tensor  # [0], of the dtype and on the device of what goes through the layers

    def __init__(self, build: BuildContext, audio: QwenAudio, hidden: int) -> None:
        """hidden: of the language model"""
        super().__init__()
        build = replace(build, ranks=ONE_RANK)
        self.audio = audio
        self.register_buffer("like", torch.empty(0, dtype=build.dtype, device=build.device), persistent=False)
        dims = SideDims(
            hidden=audio.hidden,
            intermediate=audio.intermediate,
            layers=audio.layers,
            heads=audio.heads,
            activation="gelu",
            pre_norm=True,
        )
        self.front = SoundFront(build, audio.mels, audio.hidden, audio.positions)
        self.layers = nn.ModuleList(encoder_layers(build, dims))
        self.norm = dims.norm(build)
        self.project = Linear(build, audio.hidden, hidden, bias=True)
        for layer in self.layers:
            layer.attn.qkv.bias.zero_()  # that of keys stays so

    def encode(self, contents: Sequence[MediaContent], ops: Ops) -> torch.Tensor:
        lengths, like = [content.grid[0] for content in contents], self.like
        ctx = packed_context(lengths, self.layers[0].attn.kv, self.audio.layers, like, ops)
        features = [content.values.to(like.dtype) for content in contents]
        counts = [(each.shape[1] + 1) // 2 for each in features]
        positions = torch.cat([torch.arange(count, device=like.device) for count in counts])
        x = self.front(EncoderBatch(positions.int(), positions, features), ctx)
        x = torch.cat([each[:length] for each, length in zip(x.split(counts), lengths, strict=True)])
        residual, inputs = ops.zeros_like(x), ModelInputs(ids=positions.int(), rope_positions=positions)
        for layer in self.layers:
            x, residual = layer(x, residual, inputs, ctx)
        states = ops.add(x, residual).split(lengths)
        pairs = torch.cat([each[: 2 * (len(each) // 2)].view(-1, 2, self.audio.hidden) for each in states])
        return self.project(self.norm(pairs.float().mean(dim=1).to(like.dtype), ctx), ctx)

    def largest(self, length: int) -> MediaContent:
        positions = min(2 * length, self.audio.positions // 2 * 2)
        values = torch.zeros((self.audio.mels, 2 * positions), device=self.like.device)
        return MediaContent(AUDIO, values, (positions,), positions // 2)


class Qwen2AudioForConditionalGeneration(DecoderLM):
    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        text = language_model(hf, build)
        audio = read_qwen_audio({"audio_config": hf.get("audio_config")})
        super().__init__(seeing_parts(text, QwenAudioTower(build, audio, hf["hidden_size"])))
        self.weights = seeing_weights(text.weights, _RULES, _PREFIXES)


_RULES = (
    Rule("audio_tower.conv1.weight", "tower.front.first.weight", kernel=(TAPS,)),
    Rule("audio_tower.conv1.bias", "tower.front.first.bias"),
    Rule("audio_tower.conv2.weight", "tower.front.second.weight", kernel=(TAPS,)),
    Rule("audio_tower.conv2.bias", "tower.front.second.bias"),
    Rule("audio_tower.embed_positions.*", "tower.front.places.*"),
    *(
        replace(rule, source=rule.source.replace("model.encoder.", "audio_tower."))
        for rule in side_rules("encoder", "tower.", "k_proj.weight")
    ),
    Rule("audio_tower.layer_norm.*", "tower.norm.*"),
    Rule("multi_modal_projector.linear.*", "tower.project.*"),
)

_PREFIXES = (
    ("model.", "language_model.model.model."),  # as transformers 5 writes it
    ("audio_tower.", "model.audio_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
)
