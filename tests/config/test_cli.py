"""Flags derived from fields."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.cli import Parser, add_engine_flags, engine_flags, engine_options
from cadence.config.command_line.argv import normalise
from cadence.core.errors import ConfigError


def parser() -> Parser:
    made = Parser("cadence test", "for tests")
    made.add_argument("prompt", nargs="?")
    add_engine_flags(made)
    return made


def options(*argv: str) -> dict[str, Any]:
    return engine_options(parser().parse(argv))


def args(*argv: str) -> EngineArgs:
    return EngineArgs.from_options(**options(*argv))


def test_every_field_has_a_flag() -> None:
    assert [flag.name for flag in engine_flags()] == [field.name for field in dataclasses.fields(EngineArgs)]


def test_nothing_given_nothing_set() -> None:
    assert options() == {}


@pytest.mark.parametrize("flag", ["--max-model-len", "--max_model_len", "--max-model_len"])
def test_dashes_and_underscores(flag: str) -> None:
    assert args(flag, "32k").max_model_len == 32_000
    assert args(f"{flag}=32K").max_model_len == 32_768


def test_values_keep_their_underscores() -> None:
    assert args("--model=my_model_v1", "--tokenizer", "a_b").model == "my_model_v1"
    assert parser().parse(["--", "--not_a_flag"]).prompt == "--not_a_flag"


@pytest.mark.parametrize("argv", [["--max-model-len", "auto"], ["--max-model-len", "-1"], ["--max-model-len=-1"]])
def test_auto_length(argv: list[str]) -> None:
    assert args(*argv).max_model_len == -1


def test_switches_have_a_no_form() -> None:
    assert args("--enable-prefix-caching").enable_prefix_caching is True
    assert args("--no-enable-prefix-caching").enable_prefix_caching is False
    assert args("--no_enable_prefix_caching").enable_prefix_caching is False
    assert args().enable_prefix_caching is None


def test_objects_by_json_and_by_dotted_keys() -> None:
    given = args(
        "--hf-overrides", '{"a": 1, "deep": {"x": 1}}', "--hf-overrides.deep.y", "2", "--hf_overrides.rope-type=yarn"
    )
    assert given.hf_overrides == {"a": 1, "deep": {"x": 1, "y": 2}, "rope-type": "yarn"}
    assert args("--hf-overrides.flag").hf_overrides == {"flag": True}


def test_dotted_keys_leave_other_texts_alone() -> None:
    assert normalise(["a.b", "-0.5", "--x=1.5", "--", "--a.b"]) == ["a.b", "-0.5", "--x=1.5", "--", "--a.b"]


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as left:
        parser().parse(argv)
    assert left.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith("cadence test: ")
    return text


def test_unknown_flags_name_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown flag --max-modle-len; did you mean --max-model-len?" in complaint(capsys, "--max-modle-len", "5")
    assert "did you mean --no-enable-prefix-caching?" in complaint(capsys, "--no-enable-prefix-cachin")
    assert "unknown flag --zzz " in complaint(capsys, "--zzz=1")
    assert "unknown flag --max-model " in complaint(capsys, "--max-model", "5").replace("; did", " ; did")
    assert "unexpected argument 'two'" in complaint(capsys, "one", "two")
    assert "expected one argument" in complaint(capsys, "--dtype")
    assert "not a JSON object" in complaint(capsys, "--hf-overrides", "[1]")
    assert "not a JSON object" in complaint(capsys, "--hf-overrides", "{")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-dcp", "2"], "not shared out among ranks"),
        (["--decode-context-parallel-size=2"], "not shared out among ranks"),
        (["--speculative-config", '{"method": "dflash"}'], "speculative_config.method=dflash is not in this version"),
        (["-sc.method=ngram", "-sc.num_speculative_tokens=0"], "num_speculative_tokens=0 is not between 1 and 31"),
        (["--max-lora-rank", "0"], "max_lora_rank=0 is not between 1 and 1024"),
        (["-O", "4"], "not one of 0, 1"),
        (["--dtype", "int3"], "not one of"),
    ],
)
def test_refused_flags_give_their_sentence(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        args(*argv)


def test_neutral_and_removed_flags_are_taken() -> None:
    given = ["-tp", "1", "--no-trust-remote-code", "--swap-space", "4", "--disable-log-requests", "the prompt"]
    assert parser().parse(given).prompt == "the prompt"
    assert args(*given) == EngineArgs()


def test_config_file(tmp_path: Path) -> None:
    content = {
        "model": "from/file", "max-model-len": "4k", "enable_prefix_caching": False, "hf-overrides": {"a": 1},
        "enforce-eager": True, "revision": None,
    }  # fmt: skip
    path = tmp_path / "flags.json"
    path.write_text(json.dumps(content))
    given = args("--model", "by/hand", "--config", str(path))
    assert given == EngineArgs(
        model="by/hand", max_model_len=4000, enable_prefix_caching=False, hf_overrides={"a": 1}, enforce_eager=True
    )


def test_config_file_in_yaml(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "flags.yaml"
    path.write_text("model: from/file\nmax-num-seqs: 8\n")
    assert args(f"--config={path}") == EngineArgs(model="from/file", max_num_seqs=8)


def test_config_file_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flags.json"
    assert "No such file" in complaint(capsys, "--config", str(path))
    path.write_text("[1]")
    assert "expected flag names" in complaint(capsys, "--config", str(path))
    path.write_text("{")
    assert "flags.json" in complaint(capsys, "--config", str(path))
    path.write_text('{"max-modle-len": 3}')
    assert "did you mean --max-model-len?" in complaint(capsys, "--config", str(path))
    assert "needs a file" in complaint(capsys, "--config")


def test_help_lists_fields_and_hides_refused_ones() -> None:
    text = parser().format_help()
    assert "--max-num-batched-tokens" in text and "[0.92]" in text
    assert "--decode-context-parallel-size" not in text and "--swap-space" not in text
