"""The command line without a model: help, versions, mistakes, and what streaming and chat do with an engine."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cadence.config.cli import engine_flags
from cadence.config.command_line.flag_groups import GROUPS
from cadence.config.version import __version__
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine import machine
from cadence.entrypoints.cli import complete, generate
from cadence.entrypoints.cli.bench_serve import command as bench_serve
from cadence.entrypoints.cli.chat import command as chat_command
from cadence.entrypoints.cli.main import COMMANDS, main
from cadence.entrypoints.cli.serve_flags import serve_flags
from cadence.entrypoints.cli.shared.open_llm import open_llm
from cadence.entrypoints.cli.shared.report import Measure, columns, percentile, table
from cadence.entrypoints.cli.shared.sampling import HELP, sampling_options
from cadence.entrypoints.cli.shared.streaming import stream_answer, streaming_params
from tests.cli.chat_fakes import FakeEngine, FakeLLM

ROOT = Path(__file__).parents[2]


def delta() -> SamplingParams:
    return SamplingParams(output_kind=RequestOutputKind.DELTA)


def test_answer_is_streamed_piece_by_piece() -> None:
    pieces: list[str] = []
    answer = stream_answer(FakeEngine(["a", " b", " c"]), {"prompt_token_ids": [1]}, delta(), pieces.append)  # type: ignore[arg-type]
    assert pieces == ["a", " b", " c"]
    assert (answer.text, answer.prompt_tokens, answer.output_tokens) == ("a b c", 3, 3)
    assert answer.finish_reason == "stop" and "3 out" in answer.summary()


def test_interrupt_stops_the_answer_between_steps_and_not_the_program() -> None:
    before = signal.getsignal(signal.SIGINT)
    engine = FakeEngine(["a", "b", "c", "d"], interrupt_after=1)
    answer = stream_answer(engine, {"prompt_token_ids": [1]}, delta(), lambda text: None)  # type: ignore[arg-type]
    assert (answer.text, answer.finish_reason) == ("ab", "abort")  # the step under way was finished
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_loaded_without_collections(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    during: list[bool] = []

    def load(**options: object) -> str:
        during.append(gc.isenabled())
        if fails:
            raise InvalidRequestError("no such model")
        return f"loaded {options}"

    monkeypatch.setattr("cadence.entrypoints.llm.LLM", load)
    if fails:
        with pytest.raises(InvalidRequestError):
            open_llm({"model": "m"})
    else:
        assert open_llm({"model": "m"}) == "loaded {'model': 'm'}" and gc.get_freeze_count() > 0  # type: ignore[comparison-overlap]
    assert during == [False] and gc.isenabled()


def test_flags_win_over_the_models_defaults() -> None:
    params = streaming_params(FakeLLM(FakeEngine([])), {"temperature": 0.0}, 99)  # type: ignore[arg-type]
    assert (params.temperature, params.max_tokens) == (0.0, 99)
    params = streaming_params(FakeLLM(FakeEngine([])), {"max_tokens": 5}, 99)  # type: ignore[arg-type]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.9, 5)


def test_sampling_flags_are_fields_and_checked_before_a_model_is_loaded() -> None:
    flags = generate.build_parser().parse(
        ["hi", "--temperature", "0.5", "--max_tokens", "1k", "--stop", "a,b", "--stop", "c", "--stop-token-ids", "3"]
    )
    assert sampling_options(flags) == {
        "temperature": 0.5, "max_tokens": 1000, "stop": ["a,b", "c"], "stop_token_ids": [3],
    }  # fmt: skip
    with pytest.raises(InvalidRequestError, match="top_p"):
        sampling_options(generate.build_parser().parse(["hi", "--top-p", "3"]))
    assert set(HELP) <= set(SamplingParams.__dataclass_fields__)


def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    captured = capsys.readouterr()
    yield captured.out
    yield captured.err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    assert all(capsys.readouterr().out.count(f"  {name} ") == 2 for name in ["generate"])
    assert main(["--version"]) == main(["-v"]) == 0
    assert capsys.readouterr().out == f"cadence {__version__}\n" * 2


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0 and f"usage: cadence {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["generat"], "did you mean generate?"),
        (["generate", "hi", "--temprature", "1"], "did you mean --temperature?"),
        (["generate", "hi", "--temperature", "hot"], "temperature: expected a number"),
        (["generate", "hi", "--top-p", "2"], "top_p"),
        (["generate", ""], "the prompt is empty"),
        (["bench", "speed"], "latency or throughput"),
        (["bench", "latency", "--input-len", "0"], "input_len=0 is not at least 1"),
        (["collect-env", "--all"], "unknown flag --all"),
    ],
)
def test_mistakes_are_one_line_and_status_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    out, err = lines(capsys)
    assert left.value.code == 2 and out == ""
    assert said in err and err.count("\n") == 1 and "Traceback" not in err


def test_model_files_that_cannot_be_read_are_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SystemExit) as left:
        main(["generate", "hi", "--model", str(tmp_path)])
    out, err = lines(capsys)
    assert left.value.code == 1 and out == ""
    assert str(tmp_path) in err and err.count("\n") == 1 and "Traceback" not in err


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom cadence.entrypoints.cli.main import main\nmain(['--help'])\n"
        "heavy = {'torch', 'numpy', 'tokenizers', 'rich', 'argparse_completer'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


WRONG = [
    ["serve", "--bogus"],
    ["serve", "--block-size", "7"],
    ["serve", "-dcp", "2"],
    ["serve", "/no/such/model"],
    ["serve", "--max-model-len", "0"],
    ["serve", "--tool-call-parser", "nothing"],
    ["serve", "--reasoning-parser", "nothing"],
    ["generate", "hi", "--dtype", "int3"],
    ["generate", "hi", "--model", "/no/such/model"],
    ["generate", "hi", "--gpu-memory-utilization", "2"],
    ["chat", "-q", "hi", "--block-size", "7"],
    ["bench", "latency", "--cpu-threads", "-1"],
    ["bench", "throughput", "--max-loras", "0"],
]


def test_options_are_checked_before_anything_heavy_is_imported() -> None:
    program = (
        "import sys\nfrom cadence.entrypoints.cli.main import main\n"
        f"for argv in {WRONG!r}:\n"
        "    try:\n        status = main(argv)\n    except SystemExit as left:\n        status = left.code\n"
        "    heavy = {'torch', 'numpy', 'fastapi', 'tokenizers', 'transformers'} & set(sys.modules)\n"
        "    assert status == 2 and not heavy, (argv, status, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(WRONG) and "Traceback" not in done.stderr


def test_files_and_ports_are_checked_before_torch_is_imported(tmp_path: Path) -> None:
    """With the status of the rule: 2 where the command is wrong, 1 where a model's files are."""
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": ["ThereIsNone"]}')
    broken, other, batch = str(tmp_path), str(tmp_path / "other"), tmp_path / "batch.jsonl"
    batch.write_text('{"prompt": "hi"}')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        expected = [
            (["generate", "hi", "--model", broken], 1),
            (["chat", "-q", "hi", "--model", other], 1),
            (["bench", "latency", "--model", broken], 1),
            (["serve", broken], 1),
            (["serve", "smollm2", "--tokenizer", "/no/such"], 2),
            (["quantize", broken, str(tmp_path / "out")], 1),
            (["quantize", "/no/such", str(tmp_path / "out")], 2),
            (["quantize", "smollm2", broken], 2),
            (["quantize", "smollm2", str(tmp_path / "out"), "--group-size", "7"], 2),
            (["save-sharded", "smollm2", "--output", broken, "-tp", "2"], 2),
            (["save-sharded", broken, "--output", str(tmp_path / "out"), "-tp", "2"], 1),
            (["run-batch", "-i", str(batch), "-o", str(tmp_path / "out.jsonl"), "--model", broken], 1),
            (["serve", "smollm2", "--enable-lora", "--lora-modules", "a=/no/such"], 2),
            (["serve", "--models", "a=/no/such", "b=smollm2"], 2),
            (["serve", "--models", f"a={broken}"], 2),
            (["serve", "--models", "a=smollm2", "--max-model-lne", "9"], 2),
            (["serve", "--models", "a=smollm2", "--port", str(taken.getsockname()[1])], 2),
            (["serve", "smollm2", "--port", str(taken.getsockname()[1])], 2),
        ]
        program = (
            "import sys\nfrom cadence.entrypoints.cli.main import main\n"
            f"for argv, expected in {expected!r}:\n"
            "    try:\n        status = main(argv)\n    except SystemExit as left:\n        status = left.code\n"
            "    assert status == expected and 'torch' not in sys.modules, (argv, status)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(expected) and "Traceback" not in done.stderr


def test_flags_stand_in_groups_the_common_ones_first(capsys: pytest.CaptureFixture[str]) -> None:
    names = [flag.name for flag in (*engine_flags(), *serve_flags())]
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(names)
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    titles = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[2:] == list(GROUPS) and "--help=WORD" in shown
    with pytest.raises(SystemExit):
        main(["serve", "--help=limits"])
    shown = capsys.readouterr().out
    assert shown.startswith("  --max-queued-requests") and "--port" not in shown


@pytest.mark.parametrize("flag", ["--url", "--base-url"])
def test_a_server_is_named_by_either_flag(flag: str) -> None:
    given = [flag, "http://127.0.0.1:9"]
    assert complete.build_parser().parse(given).url == given[1]
    assert chat_command.build_parser().parse(given).url == given[1]
    assert bench_serve.build_parser().parse(given).base_url == given[1]


def test_percentiles_are_numpys() -> None:
    values = list(np.random.default_rng(0).random(37))
    for percent in (0, 10, 50, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert percentile([], 50) == 0.0


def test_tables_line_up() -> None:
    assert columns([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc  d"
    assert len({len(line) for line in table([Measure("x", 1.0, "s"), Measure("long", 12345.6, "s")]).splitlines()}) == 1


def test_collect_env_tells_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(machine, "_device", lambda: "none")
    text = columns(machine.machine_facts())
    assert __version__ in text and "hf_secret" not in text and str(Path.home()) not in text
