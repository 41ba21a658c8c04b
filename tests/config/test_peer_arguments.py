"""How arguments are written: what vLLM's public tests expect of its parser, as facts about ours."""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cadence.config.command_line.argv import json_object, repeated
from cadence.config.command_line.values import coerce
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli import generate
from cadence.entrypoints.cli.chat import command as chat
from cadence.entrypoints.cli.serve import build_parser, read_flags

parser = cache(build_parser)  # it keeps nothing of what it parses


def parse(*argv: str) -> Any:
    return parser().parse(argv)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as left:
        read_flags(parse(*argv))
    assert left.value.code == 2
    return capsys.readouterr().err


def test_objects_from_json_and_from_dotted_keys() -> None:
    flags = parse(
        "--served-model-name=something.something",
        "--hf-overrides.key1", "val1",
        "--hf-overrides.key2.key3", "val2", "--hf-overrides.key2.key4", "val3",
        "-cc.use_inductor_graph_partition=true", "-cc.backend", "custom", "-O1",
        "--hf-overrides.key5=val4",
        "--hf_overrides.key_6", "val5", "--hf_overrides.key-7.key_8", "val6",
        "--hf_overrides.key9", "100", "--hf_overrides.key10", "100.0", "--hf_overrides.key11", "true",
        "--hf_overrides.key12.key13", "null",
        "--hf_overrides.key14.key15", "-minus.and.dot",
        "-cc.custom_ops+", "-quant_fp8", "-cc.custom_ops+=+silu_mul,-rms_norm",
    )  # fmt: skip
    assert flags.served_model_name == ["something.something"]
    assert flags.hf_overrides == {
        "key1": "val1", "key2": {"key3": "val2", "key4": "val3"}, "key5": "val4", "key_6": "val5",
        "key-7": {"key_8": "val6"}, "key9": 100, "key10": 100.0, "key11": True, "key12": {"key13": None},
        "key14": {"key15": "-minus.and.dot"},
    }  # fmt: skip
    assert flags.optimization_level == 1
    assert flags.compilation_config == {
        "use_inductor_graph_partition": True, "backend": "custom",
        "custom_ops": ["-quant_fp8", "+silu_mul", "-rms_norm"],
    }  # fmt: skip


def test_what_is_given_twice_is_named_and_the_last_counts(caplog: pytest.LogCaptureFixture) -> None:
    argv = [
        "--hf-overrides.key1",
        "a",
        "--hf-overrides.key1",
        "b",
        "-O1",
        "-cc.mode",
        "2",
        "-O3",
        "--port=1",
        "--port",
        "2",
    ]
    with caplog.at_level(logging.WARNING):
        flags = parse(*argv)
    assert flags.hf_overrides == {"key1": "b"} and flags.compilation_config == {"mode": 2}
    assert (flags.optimization_level, flags.port) == (3, "2")
    named = [record.getMessage().split()[0] for record in caplog.records]
    assert named == ["--hf-overrides.key1", "--optimization-level", "--port"]


def test_what_adds_up_is_not_given_twice(caplog: pytest.LogCaptureFixture) -> None:
    flags = parse("--api-key", "a", "b", "--api-key", "c", "--hf-overrides.a", "1", "--hf-overrides", '{"b": 2}')
    assert flags.api_key == ["a", "b", "c"] and flags.hf_overrides == {"a": 1, "b": 2}
    assert not caplog.records
    assert repeated(["--", "--port", "--port"]) == []


@pytest.mark.parametrize("mode", ["0", "3", "NONE", "STOCK_TORCH_COMPILE", "none"])
def test_compilation_modes(mode: str) -> None:
    expected = int(mode) if mode.isdigit() else mode
    assert parse("-cc.mode", mode).compilation_config == {"mode": expected}
    assert parse(f"-cc.mode={mode}").compilation_config == {"mode": expected}


@pytest.mark.parametrize("argv", [["-O", "1"], ["-O1"], ["-O=1"], ["--optimization-level", "1"]])
def test_optimization_levels(argv: list[str]) -> None:
    assert parse(*argv).optimization_level == 1 and not hasattr(parse(*argv), "compilation_config")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1024", 1024), ("1m", 10**6), ("10k", 10_000), ("2g", 2 * 10**9), ("2t", 2 * 10**12),
        ("3K", 3 * 2**10), ("10M", 10 * 2**20), ("4G", 2**32), ("4T", 2**42),
        ("10.2k", 10_200), ("10.2123451234567k", 10_212), ("10.2123451234567m", 10_212_345),
        ("10.2123451234567g", 10_212_345_123), ("10.2123451234567t", 10_212_345_123_456),
        ("-1", -1), ("auto", -1), ("AUTO", -1),
    ],
)  # fmt: skip
def test_lengths_as_people_write_them(text: str, number: int) -> None:
    assert read_flags(parse("--max-model-len", text))[0].max_model_len == number


@pytest.mark.parametrize("text", ["1a", "pwd", "10.24", "1.23M", "1.22T"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        read_flags(parse("--max-model-len", text))


@pytest.mark.parametrize(
    ("flag", "text", "number"),
    [
        ("max_num_batched_tokens", "2k", 2000),
        ("max_num_batched_tokens", "4K", 4096),
        ("kv_cache_memory_bytes", "100k", 100_000),
        ("kv_cache_memory_bytes", "1M", 2**20),
        ("kv_cache_memory_bytes", "1m", 10**6),
    ],
)
def test_other_numbers_as_people_write_them(flag: str, text: str, number: int) -> None:
    assert getattr(read_flags(parse("--" + flag.replace("_", "-"), text))[0], flag) == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"x": 80g}', {"x": 80 * 10**9}),
        ('{"x": 1k}', {"x": 1000}),
        ('{"x": 2t}', {"x": 2 * 10**12}),
        ('{"x": 1K}', {"x": 1024}),
        ('{"x": 1G}', {"x": 2**30}),
        ('{"x": 1.5g}', {"x": 1_500_000_000}),
        ('{"name": "80g", "my_key": 80g}', {"name": "80g", "my_key": 80 * 10**9}),
        ('{"a": 1k, "b": 2m}', {"a": 1000, "b": 2_000_000}),
        ('{"x": 42}', {"x": 42}),
        ('{"outer": {"inner": 10g, "list": [1k, "1k \\"2k"]}}', {"outer": {"inner": 10**10, "list": [1000, '1k "2k']}}),
    ],
)
def test_numbers_inside_json(text: str, expected: dict[str, Any]) -> None:
    assert json_object(text) == expected


def test_none_as_a_word() -> None:
    args, _ = read_flags(parse("--max-num-seqs", "None", "--quantization", "None", "-q=None", "--tokenizer=None"))
    assert (args.max_num_seqs, args.quantization, args.tokenizer) == (None, None, None)
    assert coerce("model", str, "None") == "None"  # a text that may not be missing


@pytest.mark.parametrize("argv", [["--hf-token"], ["--hf-token", "--port", "1"]])
def test_the_saved_token(argv: list[str]) -> None:
    assert parse(*argv).hf_token is True and read_flags(parse(*argv))[0].hf_token is None
    assert parse("--hf-token", "hf_secret").hf_token == "hf_secret"


def test_lists_of_words() -> None:
    flags = parse("--numa-bind", "--numa-bind-nodes", "0", "0", "1", "--numa-bind-cpus", "0-3", "4-7")
    assert (flags.numa_bind, flags.numa_bind_nodes, flags.numa_bind_cpus) == (True, [0, 0, 1], ["0-3", "4-7"])
    assert parse("--cudagraph-capture-sizes", "1", "2", "--port", "3").cudagraph_capture_sizes == [1, 2]
    assert parse("--cudagraph-capture-sizes", "[1, 2]", "4").cudagraph_capture_sizes == [1, 2, 4]
    assert parse("--middleware", "a.b", "--middleware", "c.d").middleware == ["a.b", "c.d"]
    assert parse("--allowed-origins", '["https://a", "https://b"]').allowed_origins == ["https://a", "https://b"]


def test_a_model_among_the_names_it_is_served_by() -> None:
    with pytest.raises(ConfigError, match=r"--served-model-name name org/model: .* name the model first"):
        read_flags(parse("--served-model-name", "name", "org/model"))
    args, options = read_flags(parse("org/model", "--served-model-name", "name", "other"))
    assert (args.model, options.served_model_name) == ("org/model", ["name", "other"])


def test_chat_template_kwargs() -> None:
    given = '{"enable_thinking": false, "custom_param": "value", "num": 42}'
    assert parse("--default-chat-template-kwargs", given).default_chat_template_kwargs == json.loads(given)


CONFIG = "port: 12312\nserved-model-name: mymodel\ntensor-parallel-size: 1\ntrust-remote-code: true\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_config_files(config: Path) -> None:
    assert parse("--config", str(config)).port == "12312"
    assert parse("--config", str(config), "--port", "9000").port == "9000"
    assert parse("--port", "9000", "--config", str(config)).port == "9000"
    args, options = read_flags(parse("mymodel", "--config", str(config)))
    assert (args.model, options.port, options.served_model_name) == ("mymodel", 12312, ["mymodel"])


def test_lists_given_by_hand_replace_those_of_the_file(config: Path) -> None:
    config.write_text("served-model-name: [a, b]\nallowed-origins: [https://a]\nhf-overrides: {a: 1, b: 1}\nport: 1\n")
    flags = parse("--config", str(config), "--served-model-name", "c", "--hf-overrides.b", "2")
    assert (flags.served_model_name, flags.allowed_origins) == (["c"], ["https://a"])
    assert flags.hf_overrides == {"a": 1, "b": 2} and flags.config_only == {"allowed_origins", "port"}
    assert read_flags(parse("--config", str(config)))[1].served_model_name == ["a", "b"]


def test_the_model_given_by_hand_wins_over_the_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG + "model: config-model\n")
    assert read_flags(parse("cli-model", "--config", str(config)))[0].model == "cli-model"
    assert read_flags(parse("--config", str(config)))[0].model == "config-model"
    assert read_flags(parse("--model=my-model", "--config", str(config)))[0].model == "my-model"
    with pytest.raises(ConfigError, match="two models"):
        read_flags(parse("cli-model", "--model", "other"))
    assert "given twice" in refusal(capsys, "--config", str(config), "--config", str(config))
    assert "needs a file" in refusal(capsys, "--config", "--port", "3")


def test_nested_values_and_switches_of_a_file(config: Path) -> None:
    config.write_text("compilation-config:\n  mode: 3\n  pass_config:\n    fuse: true\nenable-prefix-caching: false\n")
    flags = parse("--config", str(config), "-cc.pass_config.fuse=false")
    assert flags.compilation_config == {"mode": 3, "pass_config": {"fuse": False}}
    assert flags.enable_prefix_caching is False


def test_the_same_in_a_file(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    config.write_text("attention-backend: FLASHINFER\n")
    read_flags(parse("--config", str(config)))
    assert "attention_backend='FLASHINFER' has no effect here" in caplog.text
    config.write_text("decode_context_parallel_size: 2\n")
    with pytest.raises(ConfigError, match="not shared out among ranks"):
        read_flags(parse("--config", str(config)))


def test_short_forms_belong_to_their_command() -> None:
    assert chat.build_parser().parse(["-q", "hello"]).quick == "hello"
    assert generate.build_parser().parse(["-q", "int8"]).quantization == "int8"
    assert generate.build_parser().parse(["-qint8"]).quantization == "int8"


def test_a_flag_of_the_server_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        generate.build_parser().parse(["hi", "--allowed-origins", "*"])
    assert "--allowed-origins is a flag of `cadence serve`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("topic", "said", "unsaid"),
    [
        ("all", ["--decode-context-parallel-size, -dcp", "refused: the keys and values of one sequence", "--port"], []),
        ("ParallelConfig", ["--tensor-parallel-size", "--numa-bind\n"], ["--port"]),
        ("frontend", ["--allowed-origins", "--tool-server\n      refused: tools"], ["--block-size"]),
        ("limits", ["--max-queued-requests"], ["--block-size"]),
        ("max-num-seqs", ["--max-num-seqs\n      most requests running at once"], ["--port"]),
        ("prefix_caching", ["--enable-prefix-caching", "--prefix-caching-hash-algo\n      has no effect"], ["--port"]),
        ("xyzzy", ["no group and no flag has 'xyzzy' in its name"], ["--port"]),
    ],
)
def test_help_on_a_topic(topic: str, said: list[str], unsaid: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(f"--help={topic}")
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert all(words in text for words in said) and not any(words in text for words in unsaid)
