"""A smaller model as a proposer: its drafts are those of transformers, its keys lie beside the target's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.models.interface.model_proposer import TargetStates
from cadence.speculate.draft_lm import DraftLM
from tests.helpers.drafting import DraftedSequence
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.oracle import greedy, load_oracle
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.device

PROMPT = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(5)).tolist()
CPU = torch.device("cpu")


@pytest.mark.parametrize("pair", [("llama", "qwen3"), ("qwen3", "gemma2"), ("gemma3", "mistral"), ("gpt2", "opt")])
def test_drafts_are_those_of_transformers(pair: tuple[str, str], tiny_model: Callable[[str], Path]) -> None:
    """Also after a rejection, when keys of wrong drafts lie where right ones go."""
    target, directory = load(tiny_model(pair[0])), tiny_model(pair[1])
    both = DraftedSequence(target, DraftLM(load(directory), VOCAB, CPU))
    assert both.draft.proposer.begins_with is TargetStates.NONE
    oracle = load_oracle(directory)
    logits = both.feed(PROMPT)
    torch.testing.assert_close(
        torch.log_softmax(logits, dim=-1), OneSequence(target).feed(PROMPT), atol=1e-5, rtol=0
    )  # keys of two models do not meet
    drafts, _ = both.propose(17, 4)
    assert drafts == greedy(oracle, [*PROMPT, 17], 4)
    kept = [17, *drafts[:2], 99]  # two drafts were right
    both.feed(kept[:-1])
    again, _ = both.propose(kept[-1], 3, first=len(PROMPT) + 2)
    assert again == greedy(oracle, [*PROMPT, *kept], 3)
    assert torch.equal(both.feed([kept[-1]]).argmax(-1), OneSequence(target).feed([*PROMPT, *kept])[-1:].argmax(-1))


def test_layers_of_one_window_share_the_blocks_of_the_target(tiny_model: Callable[[str], Path]) -> None:
    both = DraftedSequence(load(tiny_model("llama")), DraftLM(load(tiny_model("qwen3")), VOCAB, CPU))
    assert [len(group.layers) for group in both.layout.groups] == [8]
    assert both.draft.first_layer == 4
    heads = {(layer.num_kv_heads, layer.head_dim) for layer in both.layout.layers}
    assert heads == {(2, 16), (2, 32)}


@pytest.mark.parametrize("change", [-20, 20])
def test_vocabularies_may_differ_in_their_last_ids(
    change: int, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """More: ids the target lacks are not drafted. Fewer: the target's last tokens can be drafted from."""
    source, size = tiny_model("llama"), VOCAB + change
    config = json.loads((source / "config.json").read_text()) | {"vocab_size": size}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.cat([tensors[name], 9 * tensors[name][:20]])[:size].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    proposer = DraftLM(load(tmp_path), VOCAB, CPU)
    both = DraftedSequence(load(source), proposer)
    both.feed([*PROMPT, VOCAB - 1])
    drafts, logits = both.propose(VOCAB - 2, 4)
    assert logits.shape == (4, min(size, VOCAB)) == (4, len(proposer.vocabulary.target_ids))
    assert max(drafts) < VOCAB
    plain = DraftedSequence(load(source), DraftLM(load(source), VOCAB, CPU))
    both = DraftedSequence(load(source), proposer)
    for sequence in (plain, both):
        sequence.feed([token for token in PROMPT if token < VOCAB - 20])
    assert torch.equal(both.propose(17, 1)[1], plain.propose(17, 1)[1][:, : min(size, VOCAB)])
