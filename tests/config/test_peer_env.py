"""vLLM's environment variables: what works, what has no effect and is named, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs
from cadence.config.peers.peer_flag import Support
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.serve import build_parser, read_flags


def test_each_variable_has_one_line() -> None:
    names = [variable.name for variable in peer_env.VARIABLES]
    assert len(names) == len(set(names)) and all(variable.why for variable in peer_env.VARIABLES)
    read = {name for name in env.NAMES if name.startswith("VLLM_")}
    assert read <= {variable.name for variable in peer_env.VARIABLES if variable.support is Support.WORKS}


def test_variables_that_are_flags_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("server_dev_mode", "skip_model_name_validation", "allow_runtime_lora_updating"):
        assert getattr(read_flags(build_parser().parse([]))[1], name) is False
        monkeypatch.setenv(f"VLLM_{name.upper()}", "1")
        assert getattr(read_flags(build_parser().parse([]))[1], name) is True


def test_every_variable_of_vllm_is_in_the_table() -> None:
    """The file has the names that vLLM of August 2026 reads."""
    named = (Path(__file__).parent / "vllm_variables.txt").read_text().split()
    table = {variable.name: variable for variable in peer_env.VARIABLES}
    assert len(named) == 287 and [name for name in named if name not in table] == []
    older = {"VLLM_USE_V1", "VLLM_ATTENTION_BACKEND", "DO_NOT_TRACK"}
    assert table.keys() - set(named) == older
    assert peer_env.NOT_READ not in {variable.why for variable in peer_env.VARIABLES}


def test_the_limit_of_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "7")
    assert read_flags(build_parser().parse([]))[1].max_completions == 7
    assert read_flags(build_parser().parse(["--max-completions", "9"]))[1].max_completions == 9
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "many")
    with pytest.raises(ConfigError, match="VLLM_MAX_N_SEQUENCES='many' is not a number of at least 1"):
        read_flags(build_parser().parse([]))


def test_the_limits_of_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "3")
    monkeypatch.setenv("VLLM_MAX_AUDIO_DECODE_DURATION_S", "90")
    options = read_flags(build_parser().parse([]))[1]
    assert (options.max_audio_bytes, options.max_audio_seconds) == (3 * 2**20, 90)
    assert read_flags(build_parser().parse(["--max-audio-seconds", "60"]))[1].max_audio_seconds == 60


def test_layers_of_stages() -> None:
    found = {"VLLM_PP_LAYER_PARTITION": "3,1"}
    assert peer_env.applied(EngineArgs(pipeline_parallel_size=2), found).pp_layer_partition == "3,1"
    assert (
        peer_env.applied(EngineArgs(pipeline_parallel_size=2, pp_layer_partition="2,2"), found).pp_layer_partition
        == "2,2"
    )


def test_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.peer_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_USE_V1", "1")
    monkeypatch.setenv("CADENCE_LOG_LEVEL", "ERROR")
    assert env.peer_variables() == {"VLLM_USE_V1": "1"}


def test_what_has_no_effect_is_named_once_each(caplog: pytest.LogCaptureFixture) -> None:
    found = {"VLLM_USE_V1": "1", "VLLM_NEW_THING": "x", "VLLM_API_KEY": "k", "DO_NOT_TRACK": "1"}
    assert peer_env.applied(EngineArgs(), found) == EngineArgs()
    assert [record.getMessage() for record in caplog.records] == [
        "the variable VLLM_NEW_THING has no effect here: it is not read",
        "the variable VLLM_USE_V1 has no effect here: there is one engine",
    ]


@pytest.mark.parametrize("value", ["1", "true", "/some/file"])
def test_what_would_break_a_promise_is_refused(value: str) -> None:
    for name in (
        "VLLM_USE_MODELSCOPE",
        "VLLM_LOGGING_CONFIG_PATH",
        "VLLM_MODEL_REDIRECT_PATH",
        "VLLM_ENABLE_COHERE_API",
    ):
        with pytest.raises(ConfigError, match=f"{name} cannot be honoured: .*; unset it"):
            peer_env.applied(EngineArgs(), {name: value})
        for nothing in ("", "0", "False"):
            peer_env.applied(EngineArgs(), {name: nothing})


def test_invariance_is_the_deterministic_option() -> None:
    assert peer_env.applied(EngineArgs(), {"VLLM_BATCH_INVARIANT": "1"}).deterministic
    assert not peer_env.applied(EngineArgs(), {"VLLM_BATCH_INVARIANT": "0"}).deterministic
    assert peer_env.applied(EngineArgs(deterministic=True), {}).deterministic
