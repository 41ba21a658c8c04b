"""A model whose path through its layers is transformers' own.

    tokens -> base (transformers' decoder) -> hidden states -> lm_head (its model without the decoder) -> logits
                |  linear maps, norms, experts and the embedding: ours, which find the context in `CurrentForward`
                |  attention: ours, over the paged cache

All layers compute all tokens: which of them are wanted is seen at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import LayerKV
from cadence.core.model.state_spec import LayerState
from cadence.core.pooled.pooling import EMBED
from cadence.kernels.interface.attention_batch import Sees
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs, PoolHead
from cadence.models.interface.pool_head import SameVector
from cadence.models.mapped_module import MappedModule
from cadence.models.tensor_plan import ShapeOf, TensorPlan
from cadence.models.through_transformers.activation import replace_activations
from cadence.models.through_transformers.current import CurrentForward
from cadence.models.through_transformers.embedding import CalledEmbedding
from cadence.models.through_transformers.functions import CpuFunctions, are_sums
from cadence.models.through_transformers.linear import CalledMatrix
from cadence.models.through_transformers.names import Planning, TransformersNames, rules_of
from cadence.models.through_transformers.outline import (
    base_of,
    choose_experts,
    fill_buffers,
    move_buffers,
    outlined,
    parts_of,
)
from cadence.models.through_transformers.recognise import recognise
from cadence.models.through_transformers.registered import LayerAttention, put_attention
from cadence.models.through_transformers.rehearsal import Heard, rehearsed
from cadence.models.through_transformers.replace import Replaced, Replacing
from cadence.models.through_transformers.straight import built, find_path
from cadence.models.through_transformers.trial import ObservedAttention, observe


class GivenOutputs:
    """What a decoder returns: hidden states, and none of the rest."""

    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class GivenStates(nn.Module):
    """In the decoder's place for the rest of transformers' model, which makes logits of what it is given."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> GivenOutputs:
        return GivenOutputs(inputs_embeds)

    @property
    def decoder(self) -> GivenStates:
        """Where a model asks the decoder's decoder."""
        return self


class ThroughTransformers(MappedModule):
    """Implements `CausalLM`."""

    sees = Sees.CAUSAL
    generates = True
    computes_every_token = True

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__()
        try:
            self._build(hf, build)
        except ConfigError as error:
            raise ConfigError(f"{hf.architecture} cannot run through transformers: {error}", error.field) from None

    def _build(self, hf: HFConfig, build: BuildContext) -> None:
        if not build.stage.is_all:
            raise ConfigError("its layers are not shared out among stages", "pipeline_parallel_size")
        self.now = CurrentForward()
        outline = outlined(hf, build.dtype)
        base, prefix, configs = base_of(outline), outline.base_model_prefix, parts_of(outline.config)
        replace_activations(outline, self.now)
        observed = observe(base, configs, build.max_model_len)
        _check_layers(outline, observed.layers)
        fill_buffers(outline, build.max_model_len)
        heard = rehearsed(base, configs)
        recognised = recognise(heard or Heard(), [each.module for each in observed.layers])
        if build.ranks.size > 1 and len(recognised.attention) < len(observed.layers):
            raise ConfigError("its attention is not one that ranks can share here", "tensor_parallel_size")
        shapes = {name: tensor.shape for name, tensor in outline.state_dict().items()}
        replaced = Replacing(outline, build, self.now, observed, recognised).run()
        self._functions = build.device.type == "cpu" and (observed.unsteady or _only_sums(heard, set(replaced.ours)))
        path = find_path(base, recognised)
        self._path = None if path is None else built(path, replaced.ours)
        self._planning = Planning(outline, shapes, replaced.stacks)
        choose_experts(outline.config, build.device)
        move_buffers(outline, build.device)
        self._kv = [
            replaced.attention.get(each.module) or _put_layer(self.now, index, each, build)
            for index, each in enumerate(observed.layers)
        ]
        setattr(outline, prefix, GivenStates())
        self.base, self.lm_head = base, outline
        self._embedding = replaced.embedding[len(prefix) + 1 :]
        self.heads = nn.ModuleDict()
        self.vocab_size = replaced.vocab_size
        self.own_blocks = self.own_layers = range(len(observed.layers))
        self.weights = _weights(outline, prefix, replaced)

    def tensor_plan(self, names: Sequence[str], shape_of: ShapeOf) -> TensorPlan:
        return self._planning.plan(names, shape_of)

    def forget_copies(self) -> bool:
        packed = [each.weights for each in self.parameters() if isinstance(each, CalledMatrix) and each.weights]
        for copies in packed:
            copies.clear()
        return bool(packed)

    @property
    def embed(self) -> CalledEmbedding:
        found = self.base.get_submodule(self._embedding)
        assert isinstance(found, CalledEmbedding)
        return found

    def kv_layers(self) -> list[LayerKV]:
        return list(self._kv)

    def state_layers(self) -> list[LayerState]:
        return []

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        with self.now.running(ctx, inputs):
            return ctx.wanted.pick(self._states(inputs, ctx), ctx.ops)

    def _states(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """[T, H] after the last norm"""
        if self._path is not None:
            return self._path.run(inputs, ctx)
        with CpuFunctions(ctx.ops) if self._functions else nullcontext():
            ids, positions = inputs.ids[None], inputs.rope_positions[None]
            return self.base(input_ids=ids, position_ids=positions, use_cache=False)[0][0]

    def logits(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        with self.now.running(ctx):
            return self.lm_head(inputs_embeds=hidden[None], use_cache=False).logits[0]

    def pool_heads(self) -> Mapping[str, PoolHead]:
        return {EMBED: SameVector(), **self.heads}


def _check_layers(outline: Any, observed: list[ObservedAttention]) -> None:
    text = outline.config.get_text_config()
    count, expected = len(observed), text.num_hidden_layers
    if outline._is_stateful or 0 < count < expected:
        raise ConfigError(f"{expected - count} of its {expected} layers keep a state in place of keys", "architectures")
    if not count:
        raise ConfigError("its attention is its own, and not to be replaced by ours", "architectures")
    if count != expected or len({id(each.module) for each in observed}) != count:
        raise ConfigError(f"its {expected} layers attend {count} times", "architectures")


def _put_layer(now: CurrentForward, index: int, observed: ObservedAttention, build: BuildContext) -> LayerKV:
    shape = observed.shape(build)
    put_attention(observed.module, LayerAttention(now, index, shape, observed.value_dim))
    return LayerKV(shape.num_kv_heads, shape.head_dim, shape.window)


def _only_sums(heard: Heard | None, gone: set[nn.Module]) -> bool:
    """Whether all that torch computes outside of modules of ours are sums. gone: what those stand in for"""
    return heard is not None and are_sums(func for func, around in heard.functions if gone.isdisjoint(around))


def _weights(outline: Any, prefix: str, replaced: Replaced) -> TransformersNames:
    """prefix: of the decoder's names"""

    def ours(name: str) -> str:
        return f"base.{name[len(prefix) + 1 :]}" if name.startswith(f"{prefix}.") else f"lm_head.{name}"

    rules = rules_of(
        {ours(target.partition("#")[0]) + "#" + found[1]: found for target, found in replaced.sources.items()}
    )
    return TransformersNames(
        rules=rules,
        unexpected=(*(outline._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq$"),
    )
