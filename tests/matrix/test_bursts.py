"""Bursts of any length, at any depth, captured or not, give the same tokens, and nobody waits for a long one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.engine.build import build_engine
from cadence.engine.core import EngineCore
from tests.helpers.wide import mostly_wide_rows
from tests.matrix.compare import difference
from tests.matrix.engine import Session, Trace, open_engine, stats_of, watching
from tests.matrix.features import ON_DEVICE, ON_HOST, PLAIN, Feature
from tests.matrix.runs import MatrixOf
from tests.matrix.work import Batch, batches, prompts

pytestmark = pytest.mark.engine

BURSTS = [*(("llama", count) for count in (1, 2, 3, 8)), ("gemma2", 3)]


@pytest.mark.parametrize("graphs", [False, True], ids=["exact", "padded"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("family", "num_forwards"), mostly_wide_rows(BURSTS, [("llama", 8), ("gemma2", 3)]))
def test_same_tokens(
    matrix_of: MatrixOf, tiny_model: Callable[[str], Path], family: str, num_forwards: int, depth: int, graphs: bool
) -> None:
    options = {**PLAIN, "num_scheduler_steps": num_forwards, "async_scheduling": depth == 2}
    engine, trace = open_engine(tiny_model(family), options, "padded" if graphs else "exact")
    session = Session(engine, trace, aborts=False)
    for batch in mixed():
        session.run(batch)
    wanted = matrix_of(family).wanted().outputs
    faults = [f"{key}: {told}" for key, output in session.outputs.items() if (told := difference(output, wanted[key]))]
    assert not faults, "\n".join(faults)
    assert trace.longest_burst == num_forwards and (trace.overlaps > 0) == (depth == 2)
    assert trace.replays > 0
    assert trace.largest_part == (num_forwards if graphs else 1)
    assert trace.calls["allocate_kv"] == trace.calls["warm_up"] == 1, "calls go through the codec too"
    assert stats_of(engine).kv_usage == 0


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("kind", [ON_DEVICE, ON_HOST], ids=lambda kind: kind.name)
def test_processors_of_the_whole_engine(tiny_model: Callable[[str], Path], kind: Feature, graphs: bool) -> None:
    """The same tokens as without bursts; those of the host make all bursts 1, those of the device none."""
    outputs, traces = [], []
    for num_forwards in (1, 4):
        options = {**PLAIN, **kind.options, "num_scheduler_steps": num_forwards}
        engine, trace = open_engine(tiny_model("llama"), options, "padded" if graphs and num_forwards > 1 else "none")
        session = Session(engine, trace, aborts=False)
        session.run(Batch(batches()[0].requests, {}))
        outputs.append(session.outputs)
        traces.append(trace)
    assert [key for key, output in outputs[1].items() if difference(output, outputs[0][key])] == []
    assert traces[1].longest_burst == (1 if kind is ON_HOST else 4)


def mixed() -> list[Batch]:
    """All that only draw, then one of each other kind."""
    first, second, _ = batches()
    alone = {key: request for key, request in second.requests.items() if len(request.features) == 1}
    return [first, Batch(alone, second.victims)]


def engine_request(name: str, max_tokens: int) -> EngineRequest:
    stop = StopRule(frozenset(), frozenset(), min_tokens=0, max_tokens=max_tokens)
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    return EngineRequest(name, prompts()[0], sampling, stop, seed=0, arrival_time=0.0)


@pytest.fixture
def core_of(tiny_model: Callable[[str], Path]) -> Callable[..., tuple[EngineCore, Trace]]:
    """An engine as it is by default on a CPU: automatic bursts, one step in flight."""

    def build(max_num_seqs: int) -> tuple[EngineCore, Trace]:
        small = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 60, "max_num_seqs": max_num_seqs}
        new_executor, trace = watching(graphs="none")
        args = EngineArgs.from_options(model=str(tiny_model("llama")), **small)
        return build_engine(args, new_executor=new_executor).core, trace

    return build


@pytest.mark.parametrize("num_parts", [1, 2, 8, 14, 15])
def test_a_burst_under_way_is_cut_for_a_newcomer(
    core_of: Callable[..., tuple[EngineCore, Trace]], num_parts: int
) -> None:
    """However much of the burst has run, no more of it is computed before the newcomer has its row."""
    core, trace = core_of(max_num_seqs=4)
    got: dict[str, list[int]] = {"first": [], "newcomer": []}

    def step() -> None:
        for update in core.step():
            got[update.request_id] += update.new_token_ids

    core.add(engine_request("first", max_tokens=60))
    while not trace.mid_burst:
        step()
    assert trace.newest.num_forwards == 16
    for _ in range(num_parts - 1):  # one part came with the launch
        step()
    assert trace.mid_burst
    arrival = trace.forwards
    core.add(engine_request("newcomer", max_tokens=4))
    for _ in range(200):
        step()
    assert not core.has_unfinished()
    assert trace.forwards_before["newcomer"] == arrival
    assert got["newcomer"] == got["first"][:4]  # the prompts are the same
    assert len(got["first"]) == 60 and core.stats().kv_usage == 0


def test_a_burst_is_not_cut_for_one_who_gets_no_row(core_of: Callable[..., tuple[EngineCore, Trace]]) -> None:
    core, trace = core_of(max_num_seqs=1)
    core.add(engine_request("first", max_tokens=60))
    while not trace.mid_burst:
        core.step()
    core.add(engine_request("newcomer", max_tokens=4))
    before = trace.forwards
    while trace.mid_burst:
        core.step()
    assert trace.forwards - before == 15  # of sixteen, the first had come with the launch
