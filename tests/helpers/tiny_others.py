"""Tiny random models of families that have no file here, made with transformers' classes.

`make_other(model_type, directory)` gives the same files every time. Sizes that a family's configuration does not have
are left out; those that a family needs otherwise stand in `_OWN`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import randomise, save_tokenizer
from tests.helpers.tiny_sizes import WINDOW, decoder_sizes

_SEED = 38
_SIZES = {
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_dense_layers"), 1),
    **{"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"sliding_window": WINDOW, "head_dim": 16, "ffn_dim": 96, "n_positions": 512},
}
_OWN: dict[str, dict[str, Any]] = {}
# Those that were seen to run; of the others `docs/using/models.md` says why they do not.
RUNNING = (
    "apertus", "arcee", "aria_text", "beam", "cohere2", "deepseek_v2", "exaone4", "glm4", "gpt_bigcode", "gpt_neox",
    "granite", "granitemoe", "nemotron", "olmo2", "olmoe", "persimmon", "phi", "phimoe", "qwen2_moe", "stablelm",
    "starcoder2",
)  # fmt: skip


def drawn_families(count: int) -> list[str]:
    """Some of them, drawn by lot: the same every time."""
    return random.Random(_SEED).sample(RUNNING, count)


@same_every_time
def make_other(model_type: str, directory: Path, **changes: Any) -> Path:
    """Saves a model and its tokenizer into `directory`, which is made where needed, and returns it."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    directory.mkdir(parents=True, exist_ok=True)
    kind = CONFIG_MAPPING[model_type]
    fields = set(getattr(kind, "__dataclass_fields__", ())) - set(kind.attribute_map)
    sizes = {name: value for name, value in _SIZES.items() if name in fields}
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = 4
    given = decoder_sizes(**sizes | _OWN.get(model_type, {}) | changes)
    if "num_key_value_heads" not in (*fields, *kind.attribute_map):
        given.pop("num_key_value_heads", None)  # it would only stand in the file
    config = kind(**given)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    randomise(model, 0.15, 0.08)
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return directory
