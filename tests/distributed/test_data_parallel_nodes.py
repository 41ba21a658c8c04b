"""Engines whose ranks lie on two nodes, played by processes of this machine: the tokens of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.config.args import EngineArgs
from cadence.config.parallel import ParallelConfig, resolve_parallel
from cadence.core.errors import ConfigError
from tests.helpers.headless_node import free_port, ranks_of, running, start_node
from tests.helpers.leftovers import still_running
from tests.helpers.wide import mostly_wide_rows

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 500, "cpu_threads": 1}
ENDS_S = 120.0  # for a node that was told to stop
PROMPTS = [[5 + number, 6, 7] for number in range(8)]
PARAMS = [
    SamplingParams(temperature=number % 2, seed=3, max_tokens=60, ignore_eos=True) for number in range(len(PROMPTS))
]


def placed(nnodes: int, data: int, tensor: int, pipeline: int = 1) -> list[list[list[int]]]:
    """By engine and node: ranks."""
    sizes = {"data_parallel_size": data, "tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    engines = [
        resolve_parallel(EngineArgs("m", nnodes=nnodes, node_secret_file="f", engine_number=number, **sizes))
        for number in range(data)
    ]
    return [[list(engine.ranks_on(node)) for node in range(nnodes)] for engine in engines]


def test_engines_follow_one_another_over_the_nodes() -> None:
    assert placed(2, 2, 1) == [[[0], []], [[], [0]]]
    assert placed(2, 2, 2) == [[[0, 1], []], [[], [0, 1]]]
    assert placed(2, 4, 1) == [[[0], []], [[0], []], [[], [0]], [[], [0]]]
    assert placed(4, 2, 2) == [[[0], [1], [], []], [[], [], [0], [1]]]
    assert placed(2, 1, 2, 2) == [[[0, 1], [2, 3]]]
    assert resolve_parallel(EngineArgs("m", nnodes=2, data_parallel_size=2, node_secret_file="f")).has_workers
    assert ParallelConfig().ranks_on(0) == range(1)


@pytest.mark.parametrize(
    ("sizes", "match"),
    [((3, 2, 1), "does not divide 2 ranks"), ((2, 3, 2), "lie on one node")],
    ids=["uneven", "split"],
)
def test_layouts_that_are_not_even_are_refused(sizes: tuple[int, int, int], match: str) -> None:
    nnodes, data, tensor = sizes
    with pytest.raises(ConfigError, match=match):
        EngineArgs("m", nnodes=nnodes, data_parallel_size=data, tensor_parallel_size=tensor, node_secret_file="f")


@pytest.fixture(scope="module")
def expected(tiny_model: Callable[[str], Path]) -> list[list[int]]:
    with LLM(str(tiny_model("llama")), **OPTIONS) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


NODES = [(2, 1, 1), (2, 2, 2), (4, 1, 2)]


@pytest.mark.parametrize(("data", "tensor", "on_second"), mostly_wide_rows(NODES, [(2, 1, 1)]))
def test_two_nodes_say_what_one_process_says(
    data: int, tensor: int, on_second: int, tiny_model: Callable[[str], Path], tmp_path: Path, expected: list[list[int]]
) -> None:
    """The second node is told to stop with the engines, and nothing of it is left."""
    directory, port, secret = tiny_model("llama"), free_port(), tmp_path / "secret"
    secret.write_text("a secret of this launch alone")
    flags = (f"--data-parallel-size={data}", f"--tensor-parallel-size={tensor}")
    where: dict[str, Any] = {"nnodes": 2, "master_port": port, "node_secret_file": str(secret)}
    sizes = {"data_parallel_size": data, "tensor_parallel_size": tensor}
    with running(start_node(directory, secret, port, *flags)) as node:
        with LLM(str(directory), **OPTIONS, **where, **sizes) as llm:
            ranks = ranks_of(node)
            assert len(ranks) == on_second
            for _ in range(2):
                outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
                assert [list(output.outputs[0].token_ids) for output in outputs] == expected
        assert node.wait(ENDS_S) == 0
    assert not still_running(ranks)


@pytest.mark.wide
def test_a_rank_of_the_second_node_is_killed_and_its_engine_goes_on(
    tiny_model: Callable[[str], Path], tmp_path: Path, expected: list[list[int]]
) -> None:
    """The other engine's ranks stay."""
    directory, port, secret = tiny_model("llama"), free_port(), tmp_path / "secret"
    secret.write_text("a secret of this launch alone")
    flags = ("--data-parallel-size=4", "--tensor-parallel-size=1")
    where: dict[str, Any] = {"nnodes": 2, "master_port": port, "node_secret_file": str(secret)}
    with running(start_node(directory, secret, port, *flags)) as node:
        with LLM(str(directory), **OPTIONS, **where, data_parallel_size=4) as llm:
            struck, other = ranks_of(node)
            struck.kill()
            outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            assert [list(output.outputs[0].token_ids) for output in outputs] == expected
            assert other.is_running() and not still_running([struck])
        node.terminate()  # its engine may have been about to start again, and then did not say that it was the end
        assert node.wait(ENDS_S) == 0
