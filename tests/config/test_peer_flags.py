"""Every flag of vLLM works here, has no effect and is named, or is refused with a sentence."""

from __future__ import annotations

import dataclasses
import logging
import re
from functools import cache
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.args import names as engine_names
from cadence.config.cli import Parser
from cadence.config.peers import peer_table
from cadence.config.peers.peer_flag import FlagKind, PeerFlag, Support
from cadence.config.server.serve_options import ServeOptions
from cadence.config.server.serve_options import names as server_names
from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ARCHITECTURES
from cadence.entrypoints.cli import serve as serve_command

TABLE = peer_table.FLAGS
OTHERS = [flag for flag in TABLE.values() if flag.support is not Support.WORKS]

# A value of each kind that asks for something.
ASKING: dict[FlagKind, Any] = {
    FlagKind.VALUE: "something",
    FlagKind.SWITCH: True,
    FlagKind.OBJECT: {"a": 1},
    FlagKind.LIST: ["a"],
}


def asking(flag: PeerFlag) -> Any:
    if flag.choices:
        return next(choice for choice in flag.choices if not flag.asks_for_nothing(choice))
    value = ASKING[flag.kind]
    return value if not flag.asks_for_nothing(value) else not value


@cache
def parser() -> Parser:
    """One for all cases: it keeps nothing of what it parses."""
    return serve_command.build_parser()


def serve(*argv: str) -> tuple[EngineArgs, ServeOptions]:
    return serve_command.read_flags(parser().parse(argv))


def test_the_table_is_whole() -> None:
    assert len(TABLE) == sum(len(group.flags) for group in peer_table.GROUPS)  # no name twice
    assert len(TABLE) >= 288
    shorts = [flag.short for flag in TABLE.values() if flag.short]
    assert len(shorts) == len(set(shorts))
    wanted = "-q -tp -pp -dp -ep -dcp -pcp -n -r -sc -cc -ac -dc -O -asc -dpn -dpr -dpl -dpa -dpp -dpb -dph -dpe -dpm"
    assert set(wanted.split()) == set(shorts)


@pytest.mark.parametrize("flag", TABLE.values(), ids=lambda flag: flag.name)
def test_each_flag_is_what_the_table_says(flag: PeerFlag) -> None:
    ours = {*engine_names(), *server_names(), "config"}
    if flag.means:
        assert flag.support is Support.WORKS and flag.name not in ours and flag.means.split(".")[0] in ours
    else:
        assert (flag.support is Support.WORKS) == (flag.name in ours)
    assert flag.why or flag.support is Support.WORKS
    assert not any(hint in flag.neutral for hint in flag.hints)


def test_no_reason_denies_what_there_is() -> None:
    """Families, Ray's actors, files that torch.save wrote, several engines."""
    why = "\n".join(flag.why for flag in OTHERS)
    absent = re.findall(r"no family with (\w+)", why)
    assert [word for word in absent if any(word.lower() in name.lower() for name in ARCHITECTURES)] == []
    for wrong in ("no Ray", "PyTorch checkpoints are not read", "one engine", "code .* is never run", "is not scaled"):
        assert not re.search(wrong, why), wrong


@pytest.mark.parametrize("flag", OTHERS, ids=lambda flag: flag.name)
def test_python_and_the_command_line_agree(flag: PeerFlag, caplog: pytest.LogCaptureFixture) -> None:
    for value in (None, *flag.neutral):
        assert EngineArgs.from_options(**{flag.name: value}) == EngineArgs()
    assert not caplog.records
    if flag.support is Support.REFUSED:
        with pytest.raises(ConfigError, match=f"{flag.name}=.* cannot be honoured: ") as caught:
            EngineArgs.from_options(**{flag.name: asking(flag)})
        assert str(caught.value).endswith(flag.why)
        with pytest.raises(ConfigError, match="cannot be honoured"):
            serve(*written(flag))
        return
    if flag.name in ("language_model_only", "enable_log_deltas"):
        return  # both of its values ask for nothing
    for made in (EngineArgs.from_options(**{flag.name: asking(flag)}), serve(*written(flag))[0]):
        assert made == dataclasses.replace(EngineArgs(), use_tqdm_on_load=made.use_tqdm_on_load)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and all(line.startswith(f"{flag.name}=") and line.endswith(flag.why) for line in lines)


def written(flag: PeerFlag) -> list[str]:
    """The same value as words of a command line."""
    value = asking(flag)
    if flag.kind is FlagKind.SWITCH:
        return [flag.flag if value else "--no-" + flag.flag[2:]]
    return [flag.flag, {FlagKind.OBJECT: '{"a": 1}', FlagKind.LIST: "a"}.get(flag.kind, str(value))]


@pytest.mark.parametrize("flag", [flag for flag in TABLE.values() if flag.short], ids=lambda flag: flag.name)
def test_short_forms(flag: PeerFlag) -> None:
    parse = parser().parse
    words = {FlagKind.SWITCH: [], FlagKind.OBJECT: ['{"a": 1}']}.get(flag.kind, ["1"])
    assert parse([flag.short, *words]) == parse([flag.flag, *words])
    if words:
        assert parse([f"{flag.short}={words[0]}"]) == parse([flag.flag, *words])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer_mode", "slow"),
        ("load_format", "runai_streamer"),
        ("load_format", "hf"),
    ],
)
def test_values_that_are_hints(name: str, value: str, caplog: pytest.LogCaptureFixture) -> None:
    assert EngineArgs.from_options(**{name: value}) == EngineArgs()
    assert f"{name}='{value}' has no effect here: " in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"distributed_executor_backend": "external_launcher"}, "not one of uni, mp, ray"),
        ({"decode_context_parallel_size": 2}, "not shared out among ranks"),
        ({"quantization": "hqq"}, "none, gguf, int8, int4"),
        ({"prefix_caching_hash_algo": "invalid"}, "not one of sha256"),
        ({"optimization_level": 4}, "not one of 0, 1, 2, 3"),
        ({"load_format": "tensorizer"}, "not one of auto"),
        ({"host": "0.0.0.0"}, "host is an option of `cadence serve`"),
    ],
)
def test_values_that_ask_for_what_is_not_here(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineArgs.from_options(**options)


def test_old_names_of_options(caplog: pytest.LogCaptureFixture) -> None:
    args = EngineArgs.from_options(rope_theta=1e6, rope_scaling={"rope_type": "yarn"}, hf_overrides={"a": 1})
    assert args.hf_overrides == {"a": 1, "rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn"}}
    args, options = serve("--rope-theta", "10000", "--h11-max-header-count", "256")
    assert args.hf_overrides == {"rope_theta": 10000} and options.max_header_count == 256
    assert not caplog.records


def test_options_of_the_server_in_python(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert EngineArgs.from_options(served_model_name="x", enable_log_requests=True) == EngineArgs()
    assert [record.getMessage() for record in caplog.records] == [
        "served_model_name has no effect here: it is for `cadence serve`",
        "enable_log_requests has no effect here: it is for `cadence serve`",
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["--compilation-config", '{"level": 3}'],
        ["-O3"],
        ["-O", "3"],
        ["-O=1"],
        ["-O.mode=3"],
        ["-O", '{"level": 3}'],
        ["-cc.cudagraph_mode=NONE"],
        ["--compilation-config.mode=3", "--compilation_config.pass_config.fuse_norm", "true"],
        ["--attention-backend", "FLASHINFER"],
        ["-ac.backend=FLASH_ATTN"],
        ["--cudagraph-capture-sizes", "1", "2", "4", "8"],
        ["--data-parallel-backend", "ray", "--max-lora-rank", "64"],
        ["--compilation-config.level", "3"],
        ["--kernel-config", '{"size": 80g}'],
        ["--disable-log-requests"],
        ["--swap-space=4"],
    ],
)
def test_hints_start_a_server_with_a_line(argv: list[str], caplog: pytest.LogCaptureFixture) -> None:
    args, _ = serve("smollm2", *argv)
    assert args.model == "smollm2" and caplog.records
    assert all("has no effect here: " in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "argv",
    [
        ["-tp", "1", "-pp", "1", "-dp=1", "-dcp", "1", "--nnodes", "1", "--node-rank", "0"],
        ["--no-enable-lora", "--no-trust-remote-code", "--no-enable-expert-parallel"],
        ["--tokenizer-mode", "auto", "--runner", "generate", "--convert", "none", "--task", "generate"],
        ["--cpu-offload-gb", "0", "--swap-space", "0", "--watermark", "0.0"],
        ["--distributed-executor-backend", "uni", "--distributed-executor-backend=None", "-O2"],
        ["--speculative-config", "{}", "--compilation-config={}", "--reasoning-parser-plugin", ""],
    ],
)
def test_what_asks_for_nothing_is_taken_in_silence(argv: list[str], caplog: pytest.LogCaptureFixture) -> None:
    serve("smollm2", *argv)
    assert [record for record in caplog.records if "more than once" not in record.getMessage()] == []
