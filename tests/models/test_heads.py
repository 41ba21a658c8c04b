"""Heads draft what plain torch drafts by their papers' equations, from checkpoints in every layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cadence.config.engine_config import LoadConfig
from cadence.device.calls import Calls, CommandGraph
from cadence.kernels.cpu.ops import CpuOps
from cadence.models.interface.model_proposer import TargetStates
from cadence.models.interface.wanted import EVERY_TOKEN
from cadence.models.loader.load_head import Head
from cadence.models.loader.slots import slots
from tests.helpers import tiny_heads as heads
from tests.helpers.drafting import DraftedSequence, inputs_of
from tests.helpers.head_layouts import LAYOUTS, Target, eagle, eagle3
from tests.helpers.oracle import load_oracle
from tests.helpers.tiny_heads import CONFIG, Oracle
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.device

PROMPT = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(5)).tolist()
CHOSEN, COUNT = 17, 3


@pytest.fixture
def llama(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@torch.inference_mode()
def expected(
    directory: Path, head: Head, tensors_of: Path, oracle: Oracle, tokens: list[int]
) -> tuple[list[int], torch.Tensor]:
    """Greedy drafts after `tokens`, of which the target has computed all but the last, and their logits."""
    states = load_oracle(directory)(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
    hidden = states[-1][0]
    if head.begins_with is TargetStates.AUX:
        fc = load_file(tensors_of / "model.safetensors")["fc.weight"]
        hidden = torch.cat([states[layer][0] for layer in head.aux_layers], dim=-1) @ fc.T
    ids, lines, drafts = torch.tensor(tokens[1:]), [], list[int]()
    for draft in range(COUNT):
        logits, fed = oracle((ids, hidden), draft)
        lines.append(logits[-1])
        drafts.append(int(head.vocabulary.target_ids[logits[-1].argmax()]))
        hidden = torch.cat([hidden, fed[-1:]])
        ids = torch.cat([ids, torch.tensor(drafts[-1:])])
    return drafts, torch.stack(lines)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_are_those_of_the_equations(layout: str, llama: Path, tmp_path: Path) -> None:
    """In the first round, and when the target kept one draft and chose another token."""
    method, directory, oracle = LAYOUTS[layout](llama, tmp_path / "head")
    target = Target(directory if method == "mtp" else llama)
    head = target.head(method, directory)
    both = DraftedSequence(target.model, head)
    both.feed(PROMPT[:25])
    both.feed(PROMPT[25:])
    drafts, logits = both.propose(CHOSEN, COUNT)
    wanted, lines = expected(llama, head, directory, oracle, [*PROMPT, CHOSEN])
    torch.testing.assert_close(logits, lines, atol=2e-4, rtol=1e-3)
    assert drafts == wanted
    both.feed([CHOSEN, drafts[0]])
    drafts, logits = both.propose(99, COUNT, first=len(PROMPT))
    wanted, lines = expected(llama, head, directory, oracle, [*both.tokens, 99])
    torch.testing.assert_close(logits, lines, atol=2e-4, rtol=1e-3)
    assert drafts == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_of_the_cpu_draft_the_same_and_are_recorded(layout: str, llama: Path, tmp_path: Path) -> None:
    """A draft for one token a row is a list of calls into C: no torch between them."""
    method, directory, _ = LAYOUTS[layout](llama, tmp_path / "head")
    place = directory if method == "mtp" else llama
    calls = Calls(2)
    plain, packed = Target(place), Target(place, CpuOps(calls))
    sequences = [
        DraftedSequence(target.model, target.head(method, directory), target.build.ops) for target in (plain, packed)
    ]
    found = []
    for sequence in sequences:
        sequence.feed(PROMPT)
        found.append(sequence.propose(CHOSEN, COUNT))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-3, rtol=1e-3)
    sequence, head = sequences[1], sequences[1].draft.proposer
    states, positions = sequence.states(len(PROMPT) - 1), torch.tensor([len(PROMPT) - 1])
    inputs, ctx = inputs_of([CHOSEN], positions), sequence.context(positions, EVERY_TOKEN)

    def draft() -> torch.Tensor:
        for_logits, _ = head.forward(inputs, head.combine(states, ctx), ctx, 0)
        return head.logits(for_logits, ctx, 0)

    with torch.inference_mode():
        graph, logits = calls.record(draft)
    assert isinstance(graph, CommandGraph)
    torch.testing.assert_close(logits[:1], found[1][1][:1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["eagle", "eagle3", "mtp as in MiMo", "medusa"])
def test_heads_may_be_quantised(layout: str, llama: Path, tmp_path: Path) -> None:
    method, directory, _ = LAYOUTS[layout](llama, tmp_path / "head")
    place = directory if method == "mtp" else llama
    exact, narrow = Target(place), Target(place, CpuOps(Calls(1)))
    narrow.load = LoadConfig("auto", use_tqdm=False, quantization="int8")
    lines = []
    for target in (exact, narrow):
        both = DraftedSequence(target.model, target.head(method, directory), target.build.ops)
        both.feed(PROMPT)
        lines.append(both.propose(CHOSEN, 1)[1])
    assert 0 < (lines[0] - lines[1]).abs().mean() < 0.1 * lines[0].abs().mean()


def test_beside_blocks_of_a_file_a_head_has_8_bits(llama: Path, tmp_path: Path) -> None:
    lines = {}
    for quantization in ("none", "int8", "gguf"):
        target = Target(llama, CpuOps(Calls(1)))
        target.load = LoadConfig("auto", use_tqdm=False, quantization=quantization)
        method, directory, _ = eagle3(llama, tmp_path / quantization)
        both = DraftedSequence(target.model, target.head(method, directory), target.build.ops)
        both.feed(PROMPT)
        lines[quantization] = both.propose(CHOSEN, 1)[1]
    assert torch.equal(lines["gguf"], lines["int8"]) and not torch.equal(lines["gguf"], lines["none"])


def test_what_a_checkpoint_lacks_is_the_targets(llama: Path, tmp_path: Path) -> None:
    target = Target(llama)
    without, own = (target.head(*eagle(llama, tmp_path / str(own), own=own)[:2]) for own in (False, True))
    parameters = {name for slot in slots(without) for name in slot.names}
    assert not [name for name in parameters if name.startswith(("embed", "lm_head"))]
    sizes = [sum(slot.tensor.numel() for slot in slots(head)) for head in (without, own)]
    assert sizes[1] - sizes[0] == VOCAB * 64
    target.model.embed.weight.to_fill().zero_()
    ids = inputs_of([5], torch.tensor([0]))
    ctx = DraftedSequence(target.model, without).context(torch.tensor([0]), EVERY_TOKEN)
    assert without.embed(ids, ctx).abs().max() == 0 < own.embed(ids, ctx).abs().max()


def test_a_vocabulary_of_few_tokens_is_widened_to_the_targets_ids(llama: Path, tmp_path: Path) -> None:
    head = Target(llama).head(*eagle3(llama, tmp_path)[:2])
    held = load_file(tmp_path / "model.safetensors")
    known = held["t2d"].nonzero()[:, 0]
    assert torch.equal(head.vocabulary.target_ids, known) and not head.vocabulary.same
    logits = torch.randn(2, heads.DRAFT_VOCAB)
    wide = head.vocabulary.widen(logits, VOCAB)
    assert torch.equal(wide[:, known], logits)
    assert wide[:, ~held["t2d"]].max() == float("-inf")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "smollm3"])
def test_a_module_of_each_dense_family_has_its_layers(family: str, tiny_model: Callable[[str], Path]) -> None:
    """Dummy weights: the layer is the family's own, with its biases and norms, and the target's ends are shared."""
    target = Target(tiny_model(family))
    target.load = LoadConfig("dummy", use_tqdm=False)
    head = target.head("mtp", target.directory)
    names = {name.removeprefix("layers.0.") for slot in slots(head) for name in slot.names if "layers.0." in name}
    theirs = {
        name.removeprefix("layers.1.") for slot in slots(target.model) for name in slot.names if "layers.1." in name
    }
    assert names == theirs
    assert [layer.num_kv_heads for layer in head.kv_layers()] == [2]
    both = DraftedSequence(target.model, head)
    both.feed(PROMPT)
    assert len(both.propose(CHOSEN, 2)[0]) == 2


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_dummy_heads_need_no_weights(method: str, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    target = Target(llama)
    target.load = LoadConfig("dummy", use_tqdm=False)
    both = DraftedSequence(target.model, target.head(method, tmp_path))
    both.feed(PROMPT)
    assert len(both.propose(CHOSEN, COUNT)[0]) == COUNT


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, (0, 1, 3)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}, (1, 2, 3)),  # outputs of layers
        ({}, (2, 2, 1)),  # of four layers: the third, the one in the middle, the third but last
    ],
)
def test_streams_are_those_of_the_layers_that_a_file_names(
    config: dict[str, object], layers: tuple[int, ...], llama: Path, tmp_path: Path
) -> None:
    _, directory, _ = eagle3(llama, tmp_path)
    plain = CONFIG | {"draft_vocab_size": heads.DRAFT_VOCAB}
    (directory / "config.json").write_text(json.dumps(plain | config))
    assert Target(llama).head("eagle3", directory).aux_layers == layers
