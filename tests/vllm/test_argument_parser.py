"""Parsers and options of scripts for vLLM as its public tests expect them: `FlexibleArgumentParser`, `EngineArgs`."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import pytest

from cadence.core.errors import ConfigError
from cadence.entrypoints.engine_args import EngineArgs
from cadence.vllm.argument_parser import FlexibleArgumentParser
from tests.server.fake_llm import save_fake_model


@pytest.fixture
def parser() -> FlexibleArgumentParser:
    parser = FlexibleArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--hf-overrides", type=json.loads)
    parser.add_argument("-cc", "--compilation-config", type=json.loads)
    parser.add_argument("--optimization-level", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--the_size", type=float)
    parser.add_argument("--config")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--feature", action=argparse.BooleanOptionalAction)
    return parser


@pytest.fixture
def engine_parser() -> argparse.ArgumentParser:
    return EngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))


def test_dotted_keys_of_a_plain_flag_add_up(parser: FlexibleArgumentParser) -> None:
    args = parser.parse_args(
        [
            "run", "--hf-overrides.a.b", "1", "--hf_overrides.a.c=x.y", "-cc.mode", "NONE", "--port", "1",
            "-cc.custom_ops+", "-quant", "-cc.custom_ops+=+silu,-norm", "-O1", "--the-size", "-2.5",
        ]
    )  # fmt: skip
    assert args.hf_overrides == {"a": {"b": 1, "c": "x.y"}}
    assert args.compilation_config == {"mode": "NONE", "custom_ops": ["-quant", "+silu", "-norm"]}
    assert (args.optimization_level, args.port, args.the_size) == (1, 1, -2.5)


@pytest.mark.parametrize("argv", [["-O", "3"], ["-O3"], ["-O=3"], ["--optimization_level", "3"]])
def test_levels(parser: FlexibleArgumentParser, argv: list[str]) -> None:
    assert parser.parse_args(["run", *argv]).optimization_level == 3


def test_words_that_only_look_dotted_are_left_alone() -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("-I")
    parser.add_argument("--optimization-level")
    parser.add_argument("--compilation-config")
    args = parser.parse_args(["-I./folder", "-O", '{"mode": 3}'])
    assert (args.I, args.compilation_config, args.optimization_level) == ("./folder", '{"mode": 3}', None)


def test_what_is_given_twice_is_named(parser: FlexibleArgumentParser, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        args = parser.parse_args(["run", "--hf-overrides.a", "1", "--hf-overrides.a", "2", "-O1", "-O3"])
    assert (args.hf_overrides, args.optimization_level) == ({"a": 2}, 3)
    named = [record.getMessage().split()[0] for record in caplog.records]
    assert named == ["--hf-overrides.a", "--optimization-level"]


def test_words_after_two_dashes_are_no_flags() -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--x", type=json.loads)
    args = parser.parse_args(["--x.a", "1", "--", "--x.b", "-O2", "--config"])
    assert (args.x, args.words) == ({"a": 1}, ["--x.b", "-O2", "--config"])


def test_a_config_file_under_flags(parser: FlexibleArgumentParser, tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text(json.dumps({"port": 5, "verbose": False, "feature": False, "compilation-config": {"mode": 3}}))
    for argv in (["--config", str(file), "--port", "6"], ["--port", "6", "--config", str(file)]):
        args = parser.parse_args(["run", "a-model", *argv])
        assert (args.model, args.port, args.verbose, args.feature) == ("a-model", 6, False, False)
        assert args.compilation_config == {"mode": 3}
    with pytest.raises(SystemExit):
        parser.parse_args(["run", "--config", str(tmp_path / "absent.json")])


def test_a_config_file_of_a_command(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text('{"max-num-seqs": 7}')
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser.add_subparsers(dest="command").add_parser("run"))
    args = parser.parse_args(["run", "--config", str(file), "--hf-overrides.a", "1"])
    assert (args.command, args.max_num_seqs, args.hf_overrides) == ("run", 7, {"a": 1})


def test_flags_of_an_engine(engine_parser: argparse.ArgumentParser) -> None:
    args = engine_parser.parse_args(
        ["-cc.mode=0", "-cc.backend", "eager", "-O", "1", "--max-num-scheduled-tokens", "4K"]
    )
    assert (args.compilation_config, args.optimization_level) == ({"mode": 0, "backend": "eager"}, 1)
    assert args.max_num_scheduled_tokens == 4096
    assert engine_parser.parse_args(["--device-ids", "0,1"]).device_ids == ["0,1"]
    assert engine_parser.parse_args(["--cudagraph-capture-sizes", "1", "2"]).cudagraph_capture_sizes == [1, 2]
    assert engine_parser.parse_args(["--max-model-len", "AUTO"]).max_model_len == -1
    assert engine_parser.parse_args([]).max_model_len is None
    for text in ("1a", "10.24", "1.23M"):
        with pytest.raises(argparse.ArgumentError):
            engine_parser.parse_args(["--max-model-len", text])


def test_options_without_a_field_can_be_read_back(engine_parser: argparse.ArgumentParser) -> None:
    argv = ["--numa-bind", "--numa-bind-nodes", "0", "0", "--attention-config.backend", "FLASH_ATTN"]
    args = EngineArgs.from_cli_args(engine_parser.parse_args(argv))
    assert (args.numa_bind, args.numa_bind_nodes) == (True, [0, 0]) and not args.numa_bind_cpus
    assert args.attention_config == {"backend": "FLASH_ATTN"}
    assert EngineArgs("m", jit_monitor_verbose=True).jit_monitor_verbose is True
    assert EngineArgs("m").prefix_cache_retention_interval == 0
    for name in ("no_such_option", "host", "lora_modules"):
        with pytest.raises(AttributeError, match=name):
            getattr(EngineArgs("m"), name)


def test_the_resolved_configuration_by_the_names_of_scripts(tmp_path: Path) -> None:
    config = EngineArgs(
        str(save_fake_model(tmp_path)), enable_prefix_caching=False, device="cpu"
    ).create_engine_config()
    assert config.cache_config.enable_prefix_caching is False
    assert config.model_config.max_model_len == 2048 and config.scheduler_config.max_num_seqs > 0
    assert config.load_config.load_format


def test_a_window_that_never_slides(tmp_path: Path) -> None:
    path = save_fake_model(tmp_path) / "config.json"
    plain = json.loads(path.read_text())
    for more, length in (({"sliding_window": 512}, 512), ({"sliding_window": None}, 2048), ({}, 2048),
                         ({"attention_chunk_size": 256}, 256),
                         ({"sliding_window": 512, "use_sliding_window": False}, 2048)):  # fmt: skip
        path.write_text(json.dumps({**plain, **more}))
        args = EngineArgs(str(tmp_path), disable_sliding_window=True, device="cpu")
        assert args.create_engine_config().model_config.max_model_len == length
    path.write_text(json.dumps({**plain, "sliding_window": 512}))
    assert EngineArgs(str(tmp_path), device="cpu").create_engine_config().model_config.max_model_len == 2048
    with pytest.raises(ConfigError, match="max_model_len=513 is not between 1 and 512, the window or chunk of"):
        EngineArgs(str(tmp_path), disable_sliding_window=True, max_model_len=513, device="cpu").create_engine_config()


def test_a_strategy_that_is_none() -> None:
    with pytest.raises(ConfigError, match="not one of lazy, eager, prefetch, torchao"):
        EngineArgs("m", safetensors_load_strategy="not-one")
