"""Inverse frequencies of the rotary kinds, in float32 on the host, named as in the papers.

A cached key was rotated once and for all, so frequencies cannot follow the length a sequence happens to have: a
request would depend on how it was chunked and when. Two kinds are defined by such a length. Here it is the engine's
`max_model_len`, for every request alike:

- dynamic NTK stretches the base for max_model_len, and not at all while that is within max_position_embeddings;
- longrope takes its short factors while max_model_len is within the original length, its long factors beyond.

So with max_model_len at or below the original length results are those of transformers at every length; above it,
they are those transformers gives for a sequence of max_model_len tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from cadence.core.errors import ConfigError
from cadence.models.layers.positions.rope_config import RopeConfig

Frequencies = tuple[torch.Tensor, float]  # inverse frequencies [rotary_dim / 2], factor on cosines and sines


def frequencies(rope: RopeConfig, max_model_len: int) -> Frequencies:
    if rope.kind not in _KINDS:
        raise ConfigError(f"rope type {rope.kind!r} is not one of {sorted(_KINDS)}", field="rope_scaling")
    if rope.rotary_dim < 2 or rope.rotary_dim % 2:
        raise ConfigError(f"rotary dimension must be even and positive, found {rope.rotary_dim}", field="head_dim")
    return _KINDS[rope.kind](rope, max_model_len)


def _exponents(dim: int) -> torch.Tensor:
    return torch.arange(0, dim, 2, dtype=torch.int64).float() / dim


def _inverse(theta: float, dim: int) -> torch.Tensor:
    return 1.0 / (theta ** _exponents(dim))


def _default(rope: RopeConfig, max_model_len: int) -> Frequencies:
    return _inverse(rope.theta, rope.rotary_dim), 1.0


def _linear(rope: RopeConfig, max_model_len: int) -> Frequencies:
    return _inverse(rope.theta, rope.rotary_dim) / rope.number("factor"), 1.0


def _dynamic(rope: RopeConfig, max_model_len: int) -> Frequencies:
    factor, dim = rope.number("factor"), rope.rotary_dim
    if dim == 2:
        raise ConfigError("rope type 'dynamic' needs heads of more than 2 rotated entries", field="head_dim")
    stretch = max(max_model_len, rope.max_positions) / rope.max_positions
    return _inverse(rope.theta * (factor * stretch - (factor - 1)) ** (dim / (dim - 2)), dim), 1.0


def _llama3(rope: RopeConfig, max_model_len: int) -> Frequencies:
    factor, low, high = rope.number("factor"), rope.number("low_freq_factor"), rope.number("high_freq_factor")
    inv_freq = _inverse(rope.theta, rope.rotary_dim)
    wavelength = 2 * math.pi / inv_freq
    smooth = (rope.original_positions / wavelength - low) / (high - low)  # 0 at the low edge, 1 at the high one
    blended = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    long, short = wavelength > rope.original_positions / low, wavelength < rope.original_positions / high
    return torch.where(long, inv_freq / factor, torch.where(short, inv_freq, blended)), 1.0


def _yarn(rope: RopeConfig, max_model_len: int) -> Frequencies:
    factor = _factor(rope)
    if rope.theta <= 1:
        raise ConfigError(f"rope type 'yarn' needs a rope_theta above 1, found {rope.theta}", field="rope_theta")
    low, high = _yarn_range(rope)
    ramp = ((torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    extrapolated = _inverse(rope.theta, rope.rotary_dim)
    interpolated = 1.0 / (factor * rope.theta ** _exponents(rope.rotary_dim))
    keep = 1 - ramp  # share of the unscaled frequency
    return interpolated * (1 - keep) + extrapolated * keep, _yarn_magnitude(rope, factor)


def _yarn_range(rope: RopeConfig) -> tuple[float, float]:
    """First and last pair of the ramp: where a head turns beta_fast and beta_slow times over the original length."""
    dim = rope.rotary_dim

    def pair(turns: float) -> float:
        return dim * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.scaling.get("beta_fast") or 32), pair(rope.scaling.get("beta_slow") or 1)
    if rope.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_magnitude(rope: RopeConfig, factor: float) -> float:
    given = rope.scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all = rope.scaling.get("mscale"), rope.scaling.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)


def _longrope(rope: RopeConfig, max_model_len: int) -> Frequencies:
    name = "long_factor" if max_model_len > rope.original_positions else "short_factor"
    factors = rope.scaling.get(name)
    if not isinstance(factors, list) or len(factors) != rope.rotary_dim // 2:
        raise ConfigError(f"rope {name!r} must be a list of {rope.rotary_dim // 2} numbers", field="rope_scaling")
    inv_freq = 1.0 / (torch.tensor(factors, dtype=torch.float32) * rope.theta ** _exponents(rope.rotary_dim))
    given = rope.scaling.get("attention_factor")
    factor = _factor(rope)
    grown = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(rope.original_positions))
    return inv_freq, grown if given is None else float(given)


def _factor(rope: RopeConfig) -> float:
    return float(rope.scaling.get("factor") or rope.max_positions / rope.original_positions)


_KINDS: dict[str, Callable[[RopeConfig, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
