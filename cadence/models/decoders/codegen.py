"""CodeGen: as GPT-J, with queries, values and keys in one matrix, one quarter of the heads after another."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM
from cadence.models.decoders.gptj import GPTJ_WEIGHTS, gptj_decoder
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.head_rows import RowOrder, pair_order
from cadence.models.layers.linear import Linear
from cadence.models.layers.rank_share import HeadShare, Held
from cadence.models.weight_map import Rule, WeightMap

_RULES = tuple(rule for rule in GPTJ_WEIGHTS.rules if not rule.part)
_QKV = Rule("transformer.h.*.attn.qkv_proj.*", "layers.*.attn.qkv.*")


class CodeGenForCausalLM(DecoderLM):
    weights = WeightMap((*_RULES, _QKV), GPTJ_WEIGHTS.other_prefixes, ("**.attn.causal_mask",))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(gptj_decoder(hf, build, QuarteredAttention))


class QuarteredAttention(Attention):
    """A checkpoint has of each quarter of the heads the queries, then the values, then the keys."""

    def projection(self, build: BuildContext, spec: AttentionSpec, share: HeadShare) -> Linear:
        (heads, own), size = share.queries, spec.shape.head_dim
        each = heads // 4
        if heads % 4:
            raise ConfigError(f"n_head must be a multiple of 4, found {heads}", field="n_head")

        def rows(place: int, pairs: int) -> RowOrder:
            """Of this rank's heads, where a quarter has queries at place 0, values at 1 and keys at 2."""
            starts = ((head // each * 3 + place) * each + head % each for head in own)
            return tuple(run for start in starts for run in pair_order(size, pairs, start * size))

        stored = rows(0, self.rotary.neighbours) + rows(2, self.rotary.neighbours) + rows(1, 0)
        parts = dict.fromkeys(("q", "k", "v"), share.queries_of_dim)
        held = Held(parts, (spec.hidden, range(spec.hidden)), {"": (3 * heads * size, stored)})
        return Linear.shared(build, held, bias=spec.qkv_bias)
