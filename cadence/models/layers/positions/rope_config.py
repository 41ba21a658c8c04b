"""Rotary settings of a model, read from either spelling that configuration files use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cadence.core.errors import ConfigError
from cadence.models.interface.build import ConfigView

_NEEDS_ORIGINAL = ("llama3", "yarn", "longrope")  # types defined against the length of pretraining
_OTHER_NAMES = {"su": "longrope", "mrope": "default"}
_AXES = 3  # of a position, where it has more than one


@dataclass(frozen=True, slots=True)
class RopeConfig:
    kind: str  # default | linear | dynamic | llama3 | yarn | longrope
    theta: float
    rotary_dim: int  # leading entries of each head that are rotated
    max_positions: int  # max_position_embeddings: the length the model is declared for
    original_positions: int  # the length it was pretrained for
    scaling: dict[str, Any] = field(default_factory=dict)  # the remaining settings of the kind
    axis_of: tuple[int, ...] = ()  # [rotary_dim / 2]: by which axis of a position each pair turns; (): there is one

    def number(self, key: str) -> float:
        """A setting the kind cannot do without."""
        value = self.scaling.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigError(f"rope type {self.kind!r} needs a number {key!r}, found {value!r}", field="rope_scaling")
        return float(value)


def read_rope(hf: ConfigView, head_dim: int, layer_type: str = "", theta: float = 10_000.0) -> RopeConfig:
    """`theta` is the family's default; `layer_type` picks one set where the file has a set per kind of layer.

    Files carry `rope_parameters` (one flat object, or one per kind of layer), or `rope_theta` beside `rope_scaling`.
    """
    settings = _settings(hf, layer_type)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    kind = _OTHER_NAMES.get(kind, kind)
    partial = settings.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0
    max_positions = hf["max_position_embeddings"]
    original = settings.get("original_max_position_embeddings") or max_positions
    if kind in _NEEDS_ORIGINAL:  # a value beside the settings wins over one among them
        original = hf.get("original_max_position_embeddings") or original
    rotary_dim = int(head_dim * partial)
    return RopeConfig(
        kind=kind,
        theta=float(settings.get("rope_theta") or hf.get("rope_theta") or theta),
        rotary_dim=rotary_dim,
        max_positions=max_positions,
        original_positions=original,
        scaling=settings,
        axis_of=_axes(settings, rotary_dim // 2),
    )


def _axes(settings: dict[str, Any], half: int) -> tuple[int, ...]:
    """Pairs of each axis are side by side, or, interleaved, take turns until those of an axis are used up."""
    sections = settings.get("mrope_section")
    if not sections:
        return ()
    if len(sections) != _AXES or sum(sections) != half:
        message = f"mrope_section must be {_AXES} numbers whose sum is {half}, found {sections}"
        raise ConfigError(message, field="rope_scaling")
    if not settings.get("mrope_interleaved"):
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    return tuple(pair % _AXES if pair // _AXES < sections[pair % _AXES] else 0 for pair in range(half))


def _settings(hf: ConfigView, layer_type: str) -> dict[str, Any]:
    settings = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(settings, dict):
        raise ConfigError(f"rope settings must be an object, found {settings!r}", field="rope_scaling")
    nested = settings.get(layer_type)
    return dict(nested) if isinstance(nested, dict) else dict(settings)
