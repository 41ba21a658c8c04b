"""Each check is shown code that breaks its law, and code that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arch import checks
from tests.arch.source import Source, imported_modules


def subjects(check: checks.Check, path: str, text: str) -> list[str]:
    return [violation.subject for violation in check([Source(path, text)])]


def long_function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


CORE, CONFIG, RUNNER = "cadence/core/a.py", "cadence/config/a.py", "cadence/runner/runner.py"
SCHEDULER = "cadence/scheduler/a.py"
BREAKS = [
    (checks.room_imports, CORE, "from cadence.engine.core import EngineCore"),
    (checks.room_imports, RUNNER, "def f():\n    import cadence.scheduler.queue"),
    (checks.room_imports, "cadence/kernels/a.py", "from cadence import models"),
    (checks.room_imports, "cadence/attic/a.py", "x = 1"),
    (checks.torch_in_host_half, CORE, "import torch"),
    (checks.torch_in_host_half, CONFIG, "def f():\n    from torch.nn import Linear"),
    (checks.cuda_outside_its_door, RUNNER, "import torch\ntorch.cuda.synchronize()"),
    (checks.cuda_outside_its_door, RUNNER, "from torch import cuda"),
    (checks.cuda_outside_its_door, RUNNER, "import torch.cuda.nvtx"),
    (checks.environment_reads, CORE, "import os\nx = os.environ['A']"),
    (checks.environment_reads, CORE, "from os import getenv"),
    (checks.environment_reads, CORE, "import os\nos.environ.get('A')"),
    (checks.file_sizes, CORE, "x = 1\n" * 400),
    (checks.function_sizes, CORE, long_function(50)),
    (checks.function_sizes, CORE, "class A:\n" + "".join(f"    {line}\n" for line in long_function(50).splitlines())),
    (checks.parameter_counts, CORE, "def f(a, b, c, d, e, *, g, h, i): ..."),
    (checks.inheritance, CORE, "class A: ...\nclass B(A): ...\nclass C(B): ...\nclass D(C): ..."),
    (checks.inheritance, CORE, "class A: ...\nclass B: ...\nclass C(A, B): ..."),
    (checks.hot_files_import_what_is_listed, RUNNER, "from cadence.sample.penalties import Penalties"),
    (checks.hot_files_import_what_is_listed, RUNNER, "from cadence.sample import penalties"),
    (checks.hot_files_import_what_is_listed, RUNNER, "import cadence.lora.table"),
    (checks.global_state, CORE, "def f():\n    global x\n    x = 1"),
    (checks.shapes_of_tensor_fields, RUNNER, "@dataclass(frozen=True)\nclass A:\n    x: torch.Tensor  # the ids"),
    (checks.host_array_names, CORE, "@dataclass\nclass A:\n    x: IntArray  # [n]"),
    (checks.rows_have_one_writer, SCHEDULER, "def f(rows):\n    rows.known_np[3] = 4"),
    (checks.rows_have_one_writer, SCHEDULER, "class A:\n    def f(self):\n        self._rows.known_np[3] += 4"),
    (checks.positional_splats, CORE, "def f(limits):\n    return Scheduler(1, *limits, runs=2)"),
    (checks.positional_splats, CORE, "x = parts._Plan[int](*pack())"),
    (
        checks.positional_splats,
        CORE,
        "class A:\n    @classmethod\n    def f(cls, *, sizes):\n        return cls(*sizes)",
    ),
    (checks.positional_splats, CORE, "class A(B):\n    def __init__(self, *rest):\n        super().__init__(*parts())"),
]
HOLDS = [
    (
        checks.room_imports,
        RUNNER,
        "from cadence.core.contract.step import StepPlan\nfrom cadence.runner.state import batch",
    ),
    (checks.room_imports, CORE, "if TYPE_CHECKING:\n    from cadence.engine.core import EngineCore"),
    (checks.torch_in_host_half, RUNNER, "import torch"),
    (checks.torch_in_host_half, CORE, "import torchless"),
    (checks.cuda_outside_its_door, "cadence/device/cuda.py", "import torch\ntorch.cuda.synchronize()"),
    (checks.cuda_outside_its_door, RUNNER, "x = device.kind == 'cuda'"),
    (checks.environment_reads, "cadence/config/env.py", "import os\nx = os.environ['A']"),
    (checks.file_sizes, CORE, "x = 1\n" * 399),
    (checks.function_sizes, CORE, long_function(49)),
    (checks.function_sizes, "cadence/kernels/triton/attention/attention.py", long_function(90)),
    (checks.parameter_counts, CORE, "class A:\n    def f(self, a, b, c, d, e, g, h): ..."),
    (checks.inheritance, CORE, "class A: ...\nclass B(A): ...\nclass C(B, ValueError): ..."),
    (checks.hot_files_import_what_is_listed, RUNNER, "from cadence.sample.pipeline import SamplePipeline"),
    (checks.hot_files_import_what_is_listed, "cadence/runner/setup.py", "from cadence.sample import penalties"),
    (checks.shapes_of_tensor_fields, RUNNER, "@dataclass\nclass A:\n    x: torch.Tensor  # [tokens, hidden]"),
    (checks.host_array_names, CORE, "@dataclass\nclass A:\n    x_np: IntArray  # [n]"),
    (checks.rows_have_one_writer, SCHEDULER, "def f(rows):\n    known = rows.known_np[3]\n    known += 1"),
    (checks.positional_splats, CORE, "class A(dict):\n    def __init__(self, *args):\n        super().__init__(*args)"),
    (
        checks.positional_splats,
        CORE,
        "x = Scheduler(sizes=sizes, **options)\ny = max(*sizes, 1)\nz = os.path.join(*parts)",
    ),
]


@pytest.mark.parametrize(("check", "path", "text"), BREAKS)
def test_check_finds(check: checks.Check, path: str, text: str) -> None:
    assert subjects(check, path, text)


@pytest.mark.parametrize(("check", "path", "text"), HOLDS)
def test_check_accepts(check: checks.Check, path: str, text: str) -> None:
    assert subjects(check, path, text) == []


def test_structures_must_name_each_folder(tmp_path: Path) -> None:
    document = tmp_path / "structures.md"
    document.write_text("| `cadence/core` | plain data |")
    sources = [Source("cadence/core/a.py", ""), Source("cadence/core/deep/b.py", "")]
    assert [v.subject for v in checks.folders_in_structures(sources, document)] == ["cadence/core/deep"]


def test_a_circle_of_files_is_found() -> None:
    lines = [
        ("a", "from cadence.core import b"),
        ("b", "def f():\n    import cadence.core.c"),
        ("d", "import cadence.core.a"),
    ]
    open_end = [Source(f"cadence/core/{name}.py", text) for name, text in lines]
    assert not list(checks.circles_of_files([*open_end, Source("cadence/core/c.py", "")]))
    closed = [*open_end, Source("cadence/core/c.py", "from cadence.core.a import x")]
    found = [violation.subject for violation in checks.circles_of_files(closed)]
    assert found == [f"cadence/core/{name}.py" for name in "abc"]


def test_folders_that_import_each_other_are_found() -> None:
    lines = [
        ("cadence/server/http/errors.py", ""),
        ("cadence/server/http/stream.py", "from cadence.server.http.errors import ApiError"),
        ("cadence/server/routes/chat.py", "def f():\n    from cadence.server.http import stream"),
        ("cadence/server/app.py", "from cadence.server.routes import chat\nimport cadence.server.http.errors"),
    ]
    one_way = [Source(*line) for line in lines]
    assert not list(checks.mutual_folder_imports(one_way))
    back = Source("cadence/server/http/auth.py", "from cadence.server.routes.chat import router")
    found = [violation.subject for violation in checks.mutual_folder_imports([*one_way, back])]
    assert found == ["cadence/server/http<->cadence/server/routes"]
    up = Source("cadence/server/routes/state.py", "import cadence.server.app")
    found = [violation.subject for violation in checks.mutual_folder_imports([*one_way, up])]
    assert found == ["cadence/server<->cadence/server/routes"]


def test_two_classes_of_one_name_are_found() -> None:
    sources = [Source("cadence/core/a.py", "class A: ...\nclass B: ..."), Source("cadence/text/b.py", "class A: ...")]
    assert [violation.subject for violation in checks.unique_class_names(sources)] == ["A"]


def test_relative_imports_are_resolved() -> None:
    source = Source("cadence/runner/state/batch.py", "from . import rows\nfrom ..setup import build")
    assert {"cadence.runner.state.rows", "cadence.runner.setup"} <= set(imported_modules(source))
