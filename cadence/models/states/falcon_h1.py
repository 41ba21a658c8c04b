"""Falcon-H1: attention and Mamba-2 side by side in every layer, and numbers that what maps give is multiplied by.

These numbers are taken into the matrices as they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM
from cadence.models.dims import Scales, gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.states.mamba2 import Mamba2
from cadence.models.layers.states.parallel_mixer import ParallelMixer
from cadence.models.llama import IGNORED
from cadence.models.states.jamba import MLP_RULES, OUTER_RULES
from cadence.models.states.shared import mamba2_rules, read_mamba2
from cadence.models.weight_map import Rule, WeightMap

_ATTENTION, _MAMBA = "layers.*.attn.attention", "layers.*.attn.mamba"

_RULES = (
    *OUTER_RULES,
    Rule("model.layers.*.self_attn.q_proj.*", f"{_ATTENTION}.qkv.*", part="q"),
    Rule("model.layers.*.self_attn.k_proj.*", f"{_ATTENTION}.qkv.*", part="k"),
    Rule("model.layers.*.self_attn.v_proj.*", f"{_ATTENTION}.qkv.*", part="v"),
    Rule("model.layers.*.self_attn.o_proj.*", f"{_ATTENTION}.out.*"),
    *mamba2_rules("model.layers.*.mamba", _MAMBA),
    *MLP_RULES,
)

_DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_norm_before_gate": True,
    "mamba_rms_norm": False,
    "projectors_bias": False,
}
_SSM_PARTS = 5  # of what a Mamba-2 projects its input to: gate, x, b, c, dt


class FalconH1ForCausalLM(DecoderLM):
    weights = WeightMap(_RULES, ignored=IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims, factors = read_dims(hf), Multipliers.read(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        bias = bool(hf.get("attention_bias", False))
        attention = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bias, out_bias=bias)
        width = hf["mamba_d_ssm"] or int(hf["mamba_expand"] * dims.hidden)
        mamba = read_mamba2(
            hf,
            dims,
            width,
            norm_group=width // hf["mamba_n_groups"] if hf["mamba_rms_norm"] else 0,
            norm_first=bool(hf["mamba_norm_before_gate"]),
            out_bias=bool(hf["projectors_bias"]),
        )

        def mixer(index: int) -> ParallelMixer:
            return ParallelMixer(Attention(build, index, attention, rotary), Mamba2(build, mamba))

        scales = Scales(embed=factors.embed, exact=True, logits=factors.logits)
        mlp_bias = bool(hf.get("mlp_bias", False))
        super().__init__(gated_decoder(build, dims, mixer, mlp_bias=mlp_bias, scales=scales))
        parts = next(self._mixers()).mamba.in_proj.parts
        rules = tuple(scaled for rule in _RULES for scaled in factors.scaled(rule, parts))
        self.weights = replace(self.weights, rules=rules)


@dataclass(frozen=True, slots=True)
class Multipliers:
    """By the names of the configuration, where they are 1 if it has none."""

    embed: float
    logits: float
    attention_in: float
    attention_out: float
    key: float
    ssm_in: float
    ssm_out: float
    ssm: tuple[float, ...]  # of each part of what a Mamba-2 projects its input to
    mlp: tuple[float, ...]  # of what goes into the gate, and of what comes down

    @classmethod
    def read(cls, hf: ConfigView) -> Multipliers:
        def one(name: str) -> float:
            value = hf.get(f"{name}_multiplier")
            return 1.0 if value is None else value

        return cls(
            embed=one("embedding"),
            logits=one("lm_head"),
            attention_in=one("attention_in"),
            attention_out=one("attention_out"),
            key=one("key"),
            ssm_in=one("ssm_in"),
            ssm_out=one("ssm_out"),
            ssm=_several(hf, "ssm_multipliers", _SSM_PARTS),
            mlp=_several(hf, "mlp_multipliers", 2),
        )

    def scaled(self, rule: Rule, parts: dict[str, int]) -> Iterator[Rule]:
        """The rules of a map's matrix and of its bias in place of one for both. parts: rows of each of
        what a Mamba-2 projects its input to"""
        qkv, at = f"{_ATTENTION}.qkv.*", (rule.target, rule.part)
        inputs, outputs = {
            (qkv, "q"): (self.attention_in, 1.0),
            (qkv, "k"): (self.attention_in, self.key),
            (qkv, "v"): (self.attention_in, 1.0),
            (f"{_ATTENTION}.out.*", ""): (1.0, self.attention_out),
            (f"{_MAMBA}.in_proj.*", ""): (self.ssm_in, 1.0),
            (f"{_MAMBA}.out_proj.*", ""): (1.0, self.ssm_out),
            ("layers.*.mlp.gate_up.*", "gate"): (1.0, self.mlp[0]),
            ("layers.*.mlp.down.*", ""): (1.0, self.mlp[1]),
        }.get(at, (1.0, 1.0))
        if rule.target == f"{_MAMBA}.in_proj.*":
            of_rows = zip(parts.values(), self.ssm, strict=True)
            rule = replace(rule, factors=tuple((count, factor) for count, factor in of_rows))
        if inputs == 1.0:
            yield replace(rule, times=outputs)
            return
        for kind, times in (("weight", inputs * outputs), ("bias", outputs)):
            stored, target = rule.source.removesuffix("*") + kind, rule.target.removesuffix("*") + kind
            yield replace(rule, source=stored, target=target, times=times)


def _several(hf: ConfigView, name: str, count: int) -> tuple[float, ...]:
    values = hf.get(name) or [1.0] * count
    if len(values) != count:
        raise ConfigError(f"{name} must be {count} numbers, found {len(values)}", field=name)
    return tuple(values)
