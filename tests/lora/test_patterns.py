"""`rank_pattern` and `alpha_pattern`: the key that PEFT takes for a module is the one that counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from peft.utils.other import get_pattern_key

from cadence.lora.patterns import ModulePatterns

pytestmark = pytest.mark.device

MODULES = [f"model.layers.{layer}.{name}" for layer in (0, 1, 10) for name in ("self_attn.q_proj", "mlp.up_proj")]
MODULES += ["lm_head", "model.embed_tokens"]


@pytest.mark.parametrize(
    "keys",
    [
        ["q_proj"],
        ["proj"],
        ["layers.0.self_attn.q_proj", "q_proj"],
        ["q_proj", "layers.0.self_attn.q_proj"],
        ["model.layers.1.mlp.up_proj", "layers.0.mlp.up_proj"],
        [r".*\.0\.self_attn.*", "q_proj"],
        ["up_proj", r"layers\.[01]\..*proj"],
        ["^model.layers.10.mlp.up_proj", "^layers.0.mlp.up_proj", "^lm_head"],
        [r"(q|up)_proj", "lm_head"],
        [r"\d+.mlp.up_proj", r"embed[.]?.tokens"],
        [".embed_tokens"],
    ],
    ids=str,
)
def test_the_key_is_the_one_that_peft_takes(keys: list[str]) -> None:
    patterns = ModulePatterns(Path("a"), "alpha_pattern", {key: float(place) for place, key in enumerate(keys)})
    for module in MODULES:
        key = get_pattern_key(keys, module)
        assert patterns.number_for(module) == (float(keys.index(key)) if key in keys else None), module


def test_names_by_the_thousand_are_looked_up() -> None:
    """As adapters have them whose ranks were chosen for each module."""
    keys = {f"model.layers.{n}.self_attn.q_proj": float(n) for n in range(20_000)}
    patterns = ModulePatterns(Path("a"), "rank_pattern", keys)
    assert patterns.number_for("model.layers.19999.self_attn.q_proj") == 19999
    assert patterns.number_for("model.layers.20000.self_attn.q_proj") is None
