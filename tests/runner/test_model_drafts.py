"""What a model drafts after the forwards of a plan is what it drafts by hand, every forward in plain sight; and on a
CPU all of it is one list of C calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.config.speculative import SpeculativeConfig
from cadence.core.contract.drafts import DRAFTS, DraftChanges
from cadence.core.contract.step import NO_TOKEN, NewRow, RowPayloads, StepPayloads, StepPlan
from cadence.core.model.kv_spec import plan_layout
from cadence.device.calls import Calls, CommandGraph
from cadence.device.cpu import CpuDevice
from cadence.kernels.select import select_ops
from cadence.models.interface.model import LayerCache
from cadence.runner.caches.storage import allocate_kv_cache
from cadence.runner.features.setup import LoadedModels, build_parts
from cadence.runner.limits import RunnerLimits
from cadence.runner.runner import Runner
from cadence.runner.state.requests import RequestRows
from cadence.speculate.draft_lm import DraftLM
from cadence.speculate.draft_model import DraftModel, StatesOfToken
from tests.helpers.drafting import BLOCK, LENGTH, DraftedSequence
from tests.helpers.head_layouts import LAYOUTS, Target
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import each_once, mostly_wide

pytestmark = pytest.mark.engine

MOST = 3
TOKENS = 128  # of a step
FORWARDS = 8  # of a burst that is recorded as one
PROMPT = torch.randint(3, VOCAB, (37,), generator=torch.Generator().manual_seed(5)).tolist()
SAMPLING = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


@dataclass(frozen=True)
class Drafted:
    """A runner with one row, in which a model drafts."""

    runner: Runner
    rows: RequestRows
    by_hand: DraftedSequence
    caches: Sequence[LayerCache]  # the proposer's

    @property
    def tokens(self) -> list[int]:
        """All that the row has, its newest included."""
        return self.rows.tokens[0, : int(self.rows.state.num_computed[0]) + 1].tolist()

    @property
    def drafts(self) -> list[int]:
        first = int(self.rows.state.num_computed[0]) + 1
        return self.rows.tokens[0, first : first + int(self.rows.state.num_drafts[0])].tolist()

    def step(self, plan: StepPlan) -> list[int]:
        """-> tokens that came"""
        self.runner.step(plan)
        self.runner.advance(plan.step_id, 0, plan.num_forwards)
        came: list[int] = []
        done = 0
        while done < plan.num_forwards:
            result = self.runner.result()
            done += len(result.token_ids_np)
            came += [token for token in result.token_ids_np.ravel().tolist() if token != NO_TOKEN]
        return came

    def keys(self) -> list[torch.Tensor]:
        """The proposer's keys and values of all positions but the newest token's."""
        count = int(self.rows.state.num_computed[0])
        blocks = range(1, 1 + LENGTH // BLOCK)
        held = [cache[list(blocks)].transpose(1, 2).flatten(0, 1) for each in self.caches for cache in (each.k, each.v)]
        return [each[:count] for each in held]

    def expected(self) -> list[int]:
        """Drafts after what the row has now, by hand from the beginning."""
        sequence, tokens = self.by_hand, self.tokens
        sequence.feed(tokens[len(sequence.tokens) : -1])
        return sequence.propose(tokens[-1], MOST)[0]


def plan_of(tokens: int, computed: int, samples: int, width: int, **others: Any) -> StepPlan:
    counts = [np.array([number], dtype=np.int32) for number in (0, tokens, computed, samples)]
    return StepPlan(1, [], others.pop("begun", []), [], *counts, width=width, **others)


def changed(most: int, catch_up: Sequence[tuple[int, int]] = ()) -> StepPayloads:
    return StepPayloads({DRAFTS: DraftChanges([(0, most)], list(catch_up))})


def begun(prompt: list[int]) -> NewRow:
    blocks = list(range(1, 1 + LENGTH // BLOCK))
    ids_np = np.array(prompt, dtype=np.int32)
    return NewRow(
        0, "a", ids_np, len(prompt), 0, (blocks,), SAMPLING, 0, frozenset(), LENGTH, RowPayloads({DRAFTS: MOST})
    )


def drafted(target_path: Path, method: str, directory: Path, kernels: str, graphs: str = "") -> Drafted:
    device = CpuDevice(1)
    ops = select_ops(device, kernels, False, "auto")
    target = Target(target_path, ops)
    if method == "draft_model":
        proposer: Any = DraftLM(Target(directory, ops).model, VOCAB, torch.device("cpu"))
    else:
        proposer = target.head(method, directory)
    states = StatesOfToken(len(proposer.aux_layers) or 1, target.model.embed.tokens.weight.cols, torch.float32)
    draft = DraftModel(proposer, VOCAB, len(target.model.kv_layers()), LENGTH, states)
    models = LoadedModels(target.model, draft)
    layout = plan_layout(models.kv_layers(), BLOCK, "float32")
    speculative = SpeculativeConfig(method, MOST)
    graphs = graphs or ("exact" if kernels == "cpu" else "none")
    limits = RunnerLimits(2, LENGTH, TOKENS, "raw_logprobs", graphs, FORWARDS, speculative=speculative)
    parts = build_parts(device, ops, models, layout, limits, ())
    runner = Runner(parts)
    caches = allocate_kv_cache(layout, 1 + 2 * LENGTH // BLOCK, device)
    runner.use_caches(caches)
    rows = parts.tables[0]
    assert isinstance(rows, RequestRows)
    return Drafted(runner, rows, DraftedSequence(target.model, proposer, ops), draft.caches(caches))


def decode(row: Drafted, width: int = 1 + MOST, **others: Any) -> StepPlan:
    return plan_of(width, len(row.tokens) - 1, width, width, **others)


MODELS = {"another model": "qwen3", "the model itself": "llama"}  # drafts mostly wrong, and all right
CASES = [*MODELS, "eagle", "eagle3", "eagle3 of speculators", "mtp as in MiMo", "medusa of few tokens"]


def made_of(case: str, tiny_model: Callable[[str], Path], folder: Path) -> tuple[str, Path]:
    """-> (method, where the proposer lies)"""
    if case in MODELS:
        return "draft_model", tiny_model(MODELS[case])
    return LAYOUTS[case](tiny_model("llama"), folder / "head")[:2]


@pytest.mark.parametrize(("case", "kernels"), each_once(CASES, ["reference", "cpu"]))
def test_drafts_are_those_made_by_hand(
    case: str, kernels: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """After a prompt in pieces, after drafts that were kept and after others, and after a while without any."""
    llama = tiny_model("llama")
    method, directory = made_of(case, tiny_model, tmp_path)
    row = drafted(directory if method == "mtp" else llama, method, directory, kernels)
    row.step(plan_of(20, 0, 0, 1 + MOST, begun=[begun(PROMPT)]))
    row.step(plan_of(17, 20, 1, 1 + MOST))
    assert len(row.tokens) == len(PROMPT) + 1
    assert row.drafts == row.expected()[:MOST]
    for _ in range(3):
        row.step(decode(row))
        assert row.drafts == row.expected()[:MOST]
    for kept in (MOST, 1) if row.by_hand.draft.proposer.ahead else ():  # drafts of others; a model has keys of its own
        true = following(row, MOST)
        true[kept:] = [(token + 1) % VOCAB for token in true[kept:]]
        at, expected = len(row.tokens), following(row, kept + 1)
        row.rows.tokens[0, at : at + MOST] = torch.tensor(true)
        assert row.step(decode(row)) == expected
        assert row.drafts == row.expected()[:MOST]
    before = len(row.tokens)
    for _ in range(5):
        row.step(decode(row, 1))
        assert row.drafts == []
    behind = [(0, len(row.tokens) + 3 - before)] if method == "draft_model" else []
    row.step(decode(row, payloads=changed(MOST, behind)))
    assert row.drafts == row.expected()[:MOST]


def test_a_model_catches_up_beside_a_full_step_of_prompts(tiny_model: Callable[[str], Path]) -> None:
    row = drafted(tiny_model("llama"), "draft_model", tiny_model("qwen3"), "cpu")
    row.step(plan_of(len(PROMPT), 0, 1, 1, begun=[begun(PROMPT)]))
    for _ in range(100):
        row.step(decode(row, 1))
    others = replace(begun([7] * TOKENS), row=1, block_ids=(list(range(17, 17 + LENGTH // BLOCK)),))
    counts = [np.array(each, dtype=np.int32) for each in ([0, 1], [1, TOKENS - 1], [len(row.tokens) - 1, 0], [1, 0])]
    row.step(StepPlan(1, [], [others], [], *counts, width=1 + MOST, payloads=changed(MOST, [(0, 103)])))
    assert row.drafts == row.expected()[:MOST]


HEADS = ["eagle", "eagle3", "mtp as in MiMo"]  # whose keys are made of the target's states
ROOM = 32  # positions that wait


WAYS = [("reference", "none"), ("cpu", "exact"), ("cpu", "padded")]  # kernels, graphs


@pytest.mark.parametrize(("case", "way"), each_once(HEADS, WAYS))
def test_a_head_that_rested_is_as_if_it_had_not(
    case: str, way: tuple[str, str], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """After pauses of every kind of length, in plans of one forward and in bursts, it has the same keys and makes the
    same drafts as one that went along with every forward."""
    kernels, graphs = way
    method, directory = made_of(case, tiny_model, tmp_path)
    target = directory if method == "mtp" else tiny_model("llama")
    rests, goes = (drafted(target, method, directory, kernels, graphs) for _ in range(2))
    for row in (rests, goes):
        row.step(plan_of(len(PROMPT), 0, 1, 1 + MOST, begun=[begun(PROMPT)]))

    def along(row: Drafted) -> StepPlan:
        """One token, after which drafts are made, and not taken."""
        return plan_of(1, len(row.tokens) - 1, 1, 1 + MOST, payloads=changed(0))

    for pause, num_forwards in ((1, 1), (ROOM - 1, 1), (ROOM, 1), (ROOM + 1, 1), (3, 16), (1, 50)):
        for _ in range(pause):
            came = rests.step(decode(rests, 1, num_forwards=num_forwards, num_together=num_forwards))
            again = [goes.step(along(goes))[0] for _ in range(num_forwards)]
            assert came == again and len(came) == num_forwards
        for row in (rests, goes):
            row.step(decode(row, 2, payloads=changed(MOST)))
        assert rests.tokens == goes.tokens and rests.drafts == goes.drafts and rests.drafts
        for ours, expected in zip(rests.keys(), goes.keys(), strict=True):
            assert torch.equal(ours, expected) or (kernels == "reference" and torch.allclose(ours, expected, atol=1e-4))


def test_a_head_rests_beside_prompts(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """One row waits while another's prompt comes in pieces, one of them a single token; then both have drafts."""
    llama = tiny_model("llama")
    method, directory = made_of("eagle3", tiny_model, tmp_path)
    row, alone = (drafted(llama, method, directory, "cpu") for _ in range(2))
    row.step(plan_of(len(PROMPT), 0, 1, 1, begun=[begun(PROMPT)]))
    prompt = PROMPT[::-1]
    other = replace(begun(prompt), row=1, block_ids=(list(range(17, 17 + LENGTH // BLOCK)),))
    done = 0
    for tokens in (9, 1, 12, 1, 1, len(prompt) - 25, 1):
        ends = done + tokens >= len(prompt)
        counts = ([0, 1], [1, tokens], [len(row.tokens) - 1, done], [1, int(ends)])
        arrays = [np.array(each, dtype=np.int32) for each in counts]
        row.step(StepPlan(1, [], [] if done else [other], [], *arrays, width=1))
        done += tokens
    arrays = [np.array(each, dtype=np.int32) for each in ([0, 1], [2, 2], [len(row.tokens) - 1, done], [2, 2])]
    row.step(StepPlan(1, [], [], [], *arrays, width=1 + MOST))
    assert row.drafts == row.expected()[:MOST] != []
    alone.step(plan_of(len(prompt), 0, 1, 1, begun=[begun(prompt)]))
    alone.step(replace(decode(alone, 2), width=1 + MOST))
    known, first = alone.tokens, len(alone.tokens)
    assert row.rows.tokens[1, : first + MOST].tolist() == known + alone.drafts


def following(row: Drafted, count: int) -> list[int]:
    """What the target says next, greedily, by hand."""
    sequence, tokens = DraftedSequence(row.by_hand.target, row.by_hand.draft.proposer, row.by_hand.ops), row.tokens
    said: list[int] = []
    logits = sequence.feed(tokens)
    for _ in range(count):
        said.append(int(logits[-1].argmax()))
        logits = sequence.feed(said[-1:])
    return said


@pytest.mark.parametrize(
    "case", mostly_wide(CASES, ["another model", "eagle3", "mtp as in MiMo", "medusa of few tokens"])
)
def test_drafts_are_recorded(
    case: str, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, record = [], Calls.record

    def noted(calls: Calls, work: Callable) -> tuple:
        graph, output = record(calls, work)
        made.append(type(graph))
        return graph, output

    monkeypatch.setattr(Calls, "record", noted)
    llama = tiny_model("llama")
    method, directory = made_of(case, tiny_model, tmp_path)
    options = {"method": method, "num_speculative_tokens": MOST, "adaptive": False}
    if method != "mtp":
        options["model"] = str(directory)
    target = directory if method == "mtp" else llama
    llm = LLM(str(target), dtype="float32", max_model_len=128, speculative_config=options)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    llm.generate([[5, 6, 7], [9] * 20], params, use_tqdm=False)
    assert made and set(made) == {CommandGraph}
