"""Gemma 2: capped attention logits, full and windowed layers in turn."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM
from cadence.models.dims import layer_windows, read_dims
from cadence.models.gemma import GEMMA_RULES, gemma_decoder
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import IGNORED, PREFIXES
from cadence.models.weight_map import WeightMap

_DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


class Gemma2ForCausalLM(DecoderLM):
    weights = WeightMap(GEMMA_RULES, PREFIXES, IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        if hf.get("use_bidirectional_attention"):
            raise ConfigError("a Gemma 2 that sees both ways is not known", field="use_bidirectional_attention")
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        in_turn = ["full_attention" if index % 2 else "sliding_attention" for index in range(dims.layers)]
        windows = layer_windows(build, hf["sliding_window"], hf.get("layer_types") or in_turn)
        scale, softcap = hf["query_pre_attn_scalar"] ** -0.5, hf["attn_logit_softcapping"] or 0.0
        bias = bool(hf.get("attention_bias", False))

        def attention(index: int) -> Attention:
            shape = dims.shape(windows[index], scale, softcap)
            return Attention(build, index, AttentionSpec(dims.hidden, shape, bias, bias), rotary)

        super().__init__(gemma_decoder(hf, build, dims, attention))
