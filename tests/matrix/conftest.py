"""One matrix per model, run once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from cadence.core.lora_request import LoRARequest
from cadence.runner import shapes
from tests.helpers.adapters import make_adapter
from tests.matrix.families import EVERY_FAMILY, FAMILIES
from tests.matrix.features import INT4_CACHE, LORA, TWO_LORAS, is_engine
from tests.matrix.runs import Matrix, MatrixOf

TRAINED = {
    LORA.name: {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    TWO_LORAS.name: {"r": 8, "target_modules": ["k_proj", "o_proj", "gate_proj", "up_proj"]},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that names no families is run on all of them."""
    named = any("family" in marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "family" in metafunc.fixturenames and not named:
        every = metafunc.config.getoption("--every-engine")
        metafunc.parametrize("family", EVERY_FAMILY if every else FAMILIES)


@pytest.hookimpl(tryfirst=True)  # before those that are marked so are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two features of an engine together: on the first family, and on the others with `--wide`. Caches of 4 bits beside
    another feature with `--wide`, too: those of 8 go the same way."""
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        together = params.get("cell") or params.get("point") or ()
        other = params.get("family", FAMILIES[0]) != FAMILIES[0] or INT4_CACHE.name in together
        if other and len(together) > 1 and all(map(is_engine, together)):
            item.add_marker(pytest.mark.wide)


@pytest.fixture(scope="session")
def matrix_of(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> MatrixOf:
    """Of families but the first, engines run a sample of the requests, and all with `--wide`."""
    whole = EVERY_FAMILY if request.config.getoption("--wide") else FAMILIES[:1]

    def opened(family: str) -> Matrix:
        adapters = {}
        for number, (name, config) in enumerate(TRAINED.items(), 1):
            path = tmp_path_factory.mktemp("adapter")
            make_adapter(tiny_model(family), path, seed=number, lora_alpha=16, **config)
            adapters[name] = LoRARequest(name, number, str(path))
        return Matrix(family, tiny_model(family), adapters, is_sample=family not in whole)

    return cache(opened)


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_WORTH_RECORDING", 1)


@pytest.fixture(autouse=True)
def threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
