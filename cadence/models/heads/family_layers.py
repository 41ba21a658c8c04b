"""Decoder layers of a family by themselves, for heads that are made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cadence.core.errors import ConfigError
from cadence.models.decoder import PreNormLayer
from cadence.models.interface.build import BuildContext, ConfigView, WithChanges
from cadence.models.registry import model_class
from cadence.models.weight_map import Rule


@dataclass(frozen=True, slots=True)
class FamilyLayers:
    layers: list[PreNormLayer]
    rules: tuple[Rule, ...]  # from `model.layers.*.` in a checkpoint to `layers.*.`


def family_layers(hf: ConfigView, architecture: str, build: BuildContext, num_layers: int = 0) -> FamilyLayers:
    """num_layers: 0 = as many as `hf` says, of its kinds; else so many that see everything."""
    changes: dict[str, object] = {"vocab_size": 1}
    if num_layers:
        changes |= {"num_hidden_layers": num_layers, "layer_types": ["full_attention"] * num_layers}
    model = model_class(architecture)(WithChanges(hf, changes), build)
    layers = [layer for layer in model.layers if isinstance(layer, PreNormLayer)]
    if len(layers) < len(model.layers):
        raise ConfigError(f"heads with layers of {architecture} are not supported", field="architectures")
    layers[-1].terms = False  # what comes after the last one is not always a norm
    return FamilyLayers(layers, tuple(rule for rule in model.weights.rules if rule.target.startswith("layers.")))


def moved(rule: Rule, source: str, target: str, columns: tuple[int, int] = (0, 1)) -> Rule:
    """A rule of layers as one of a single layer, which has its own prefix in the checkpoint and in the module."""
    return replace(
        rule,
        source=rule.source.replace("model.layers.*.", source),
        target=rule.target.replace("layers.*.", target),
        columns=columns,
    )
