"""Auxiliary hidden states: those of transformers at every layer, and a forward that is the same with and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadence.models.interface.aux_hidden import AuxHiddenStates
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.oracle import load_oracle
from tests.helpers.tiny_models import FAMILIES, USUAL, VOCAB
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.device

IDS = torch.randint(3, VOCAB, (50,), generator=torch.Generator().manual_seed(3)).tolist()


# Mamba's own families have states after layers there in place of those before.
WITH_STATES = ["jamba", "bamba", "granite_hybrid", "falcon_h1", "lfm2", "qwen3_next"]


@pytest.mark.parametrize("family", mostly_wide([*FAMILIES, *WITH_STATES], [*USUAL, "bamba"]))
def test_streams_that_enter_layers_are_those_of_transformers(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model(family)
    model, aux = OneSequence(load(directory)), AuxHiddenStates((3, 0, 1))
    parts = []
    for ids in (IDS[:20], IDS[20:]):
        model.feed(ids, last_only=True, aux=aux)
        parts.append(aux.states)
    with torch.inference_mode():
        theirs = load_oracle(directory)(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    for layer, ours in zip(aux.layers, zip(*parts), strict=True):
        torch.testing.assert_close(torch.cat(ours), theirs[layer][0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "opt_postnorm"])
def test_a_forward_has_the_same_bits_with_and_without(family: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(tiny_model(family))
    plain = OneSequence(model).feed(IDS)
    assert torch.equal(OneSequence(model).feed(IDS, aux=AuxHiddenStates((0, 1, 2, 3))), plain)
