"""A weight multiplies for the module that holds it: another kind replaces it from outside, and no family notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadence.models.decoder import DecoderLM
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.weight import DenseWeight, Weight, WeightHolder
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.device


class Adapted(Weight):
    """As an adapter would have it: the weight beneath, and a product of low rank beside it. It knows no norms."""

    def __init__(self, base: Weight, down: torch.Tensor, up: torch.Tensor) -> None:
        self.rows, self.cols = base.rows, base.cols
        self._base, self._down, self._up = base, down, up

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        inner = ctx.ops.linear(x, self._down, None)
        return self._base.linear(x, bias, ctx) + ctx.ops.linear(inner, self._up, None)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._base.logits(x, ctx) + ctx.ops.linear(ctx.ops.linear(x, self._down, None), self._up, None)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        return self._base.lookup(ids, scale, ctx) + self._up[ids] @ self._down * scale


def low_rank(weight: Weight, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(2, weight.cols, generator=random) / 8, torch.randn(weight.rows, 2, generator=random) / 8


def holders(model: DecoderLM) -> list[WeightHolder]:
    return [module for module in model.modules() if isinstance(module, WeightHolder)]


def tokens(count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(count)).tolist()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "opt"])
def test_a_weight_around_another_is_what_both_add_up_to(family: str, tiny_model: Callable[[str], Path]) -> None:
    plain, merged, wrapped = (load(tiny_model(family)) for _ in range(3))
    done: dict[int, Weight] = {}  # a tied matrix is wrapped once
    for seed, (ours, theirs) in enumerate(zip(holders(wrapped), holders(merged), strict=True)):
        held = ours.weight
        if id(held) not in done:
            down, up = low_rank(held, seed)
            done[id(held)] = Adapted(held, down, up)
            theirs.weight.to_fill().add_(up @ down)
        ours.use(done[id(held)])
    ids = tokens(40)
    expected, without = OneSequence(merged).feed(ids), OneSequence(plain).feed(ids)
    pieces = OneSequence(wrapped)
    torch.testing.assert_close(torch.cat([pieces.feed(ids[:25]), pieces.feed(ids[25:])]), expected, atol=1e-4, rtol=0)
    assert (expected - without).abs().max() > 0.1, "an adapter that changes nothing proves nothing"


def test_only_a_weight_of_the_same_size_fits(tiny_model: Callable[[str], Path]) -> None:
    down = load(tiny_model("llama")).layers[0].mlp.down
    with pytest.raises(ValueError, match="64 x 64 cannot take the place of one of 64 x 96"):
        down.use(DenseWeight(torch.zeros(64, 64)))


def test_a_weight_that_was_packed_is_not_filled_again(tiny_model: Callable[[str], Path]) -> None:
    weight = load(tiny_model("llama")).embed.weight
    with pytest.raises(TypeError, match="Adapted is filled as it is made"):
        Adapted(weight, *low_rank(weight, 0)).to_fill()


def test_rope_positions_are_not_places_in_the_cache(tiny_model: Callable[[str], Path]) -> None:
    """Rotation knows distances only: all tokens further on are the same tokens. A gap between them is seen."""
    model, ids = load(tiny_model("llama")), tokens(60)
    expected = OneSequence(model).feed(ids)
    shifted = OneSequence(model)
    moved = torch.cat([shifted.feed(ids[:30], turned=100), shifted.feed(ids[30:], turned=100)])
    torch.testing.assert_close(moved, expected, atol=1e-3, rtol=0)
    apart = OneSequence(model)
    apart.feed(ids[:30])
    assert (apart.feed(ids[30:], turned=100) - expected[30:]).abs().max() > 0.1
