"""One matrix per model: what plain engines give is kept for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from cadence.core.lora_request import LoRARequest
from cadence.engine import build
from cadence.runner import shapes
from cadence.scheduler.decode_times import DecodeTimes
from cadence.scheduler.features.states.feature import StateSnapshots
from tests.helpers.adapters import make_adapter, save_adapter
from tests.helpers.seeing import QwenOracle, SeeingOracle
from tests.helpers.tiny_seq2seq import Seq2SeqOracle
from tests.matrix.compiled_grammars import CompiledGrammars
from tests.matrix.families import (
    EVERY_FAMILY,
    FAMILIES,
    HAVING,
    STATES_ALONE,
    STATES_BESIDE,
    UNUSUAL,
    WITH_AXES,
    WITH_ENCODER,
    WITH_PICTURES,
    make_family,
)
from tests.matrix.features import LORA, PLAIN, TWO_LORAS
from tests.matrix.runs import Matrix, MatrixOf

FORWARD_S = 1e-4
TRAINED = {
    LORA.name: {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    TWO_LORAS.name: {"r": 8, "target_modules": ["k_proj", "o_proj", "gate_proj", "up_proj"]},
}

OF_BOTH_SIDES = {  # of a model with an encoder
    LORA.name: {"r": 4, "target_modules": ["q_proj", "v_proj", "fc1"]},
    TWO_LORAS.name: {"r": 8, "target_modules": ["k_proj", "out_proj", "fc2"]},
}

BESIDE_STATES = {  # of a model with states; more of them, and what it says would never repeat what stood before
    LORA.name: {"r": 4, "lora_alpha": 4, "target_modules": ["in_proj"]},
    TWO_LORAS.name: {"r": 8, "lora_alpha": 4, "target_modules": ["in_proj"]},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that names no families is run on all of them."""
    named = any("family" in marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "family" in metafunc.fixturenames and not named:
        every = metafunc.config.getoption("--every-engine")
        metafunc.parametrize("family", EVERY_FAMILY if every else FAMILIES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Families but the usual ones run with `--every-engine`."""
    if config.getoption("--every-engine"):
        return
    left_out = [item for item in items if isinstance(item, pytest.Function) and family_of(item) in UNUSUAL]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def family_of(item: pytest.Function) -> str:
    is_here = item.nodeid.startswith("tests/matrix/")
    return str(item.callspec.params.get("family", "")) if is_here and hasattr(item, "callspec") else ""


@pytest.fixture(scope="session")
def matrix_of(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[MatrixOf]:
    opened: dict[str, Matrix] = {}
    made_here: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in HAVING:
            return tiny_model(family)
        if family not in made_here:
            made_here[family] = make_family(family, tmp_path_factory.mktemp(family))
        return made_here[family]

    def get(family: str) -> Matrix:
        if family not in opened:
            opened[family] = Matrix(family, directory(family), adapters(family), CompiledGrammars())
        return opened[family]

    def adapters(family: str) -> dict[str, LoRARequest]:
        made = {}
        for number, (name, config) in enumerate(TRAINED.items(), 1):
            path = tmp_path_factory.mktemp("adapter")
            if family == WITH_ENCODER:
                model = Seq2SeqOracle(directory(family)).model
                save_adapter(model, path, seed=number, lora_alpha=16, task_type="SEQ_2_SEQ_LM", **OF_BOTH_SIDES[name])
            elif family in (WITH_PICTURES, WITH_AXES):
                matrices = "|".join(config["target_modules"])
                language = {**config, "target_modules": rf".*language_model.*\.({matrices})"}
                model = (SeeingOracle if family == WITH_PICTURES else QwenOracle)(directory(family)).model
                save_adapter(model, path, seed=number, lora_alpha=16, task_type="CAUSAL_LM", **language)
            else:
                own = BESIDE_STATES[name] if family in (STATES_ALONE, STATES_BESIDE) else config
                make_adapter(directory(family), path, seed=number, **{"lora_alpha": 16, **own})
            made[name] = LoRARequest(name, number, str(path))
        return made

    yield get
    for matrix in opened.values():
        matrix.grammars.close()


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_WORTH_RECORDING", 1)


@pytest.fixture(autouse=True)
def every_forward_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the scheduler sees it: how long bursts are does not depend on the machine or on what else runs on it."""
    observe = DecodeTimes.observe

    def observe_fast(times: DecodeTimes, num_rows: int, num_forwards: int, seconds: float) -> None:
        observe(times, num_rows, num_forwards, num_forwards * FORWARD_S)

    monkeypatch.setattr(DecodeTimes, "observe", observe_fast)
    monkeypatch.setattr(DecodeTimes, "bound", lambda times, num_rows, seconds: None)


@pytest.fixture(autouse=True)
def every_snapshot_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts are short."""
    monkeypatch.setattr(build, "StateSnapshots", partial(StateSnapshots, least_gain=PLAIN["block_size"]))


@pytest.fixture(autouse=True)
def threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
