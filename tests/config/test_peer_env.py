"""vLLM's environment variables: what works, what has no effect and is named, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs
from cadence.config.peers.peer_flag import Support
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.serve import build_parser, read_flags
from cadence.vllm import asset_files


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


def served(option: str) -> Callable[[], Any]:
    return lambda: getattr(read_flags(build_parser().parse([]))[1], option)


def engine_option(name: str, **others: Any) -> Callable[[], Any]:
    return lambda: getattr(peer_env.applied(EngineArgs(**others), env.peer_variables()), name)


# What each that works is seen in: (a value, where it is read, what is found there then).
EFFECTS: dict[str, tuple[str, Callable[[], Any], Any]] = {
    "VLLM_API_KEY": ("secret", served("api_key"), ["secret"]),
    "VLLM_LOGGING_LEVEL": ("DEBUG", env.log_level, "DEBUG"),
    "VLLM_CACHE_ROOT": ("/cache", env.cache_root, Path("/cache")),
    "VLLM_CPU_KVCACHE_SPACE": ("3", env.cpu_kv_cache_bytes, 3 * 2**30),
    "VLLM_ASSETS_CACHE": ("/assets", asset_files.folder, Path("/assets")),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": ("1", served("allow_runtime_lora_updating"), True),
    "VLLM_SERVER_DEV_MODE": ("1", served("server_dev_mode"), True),
    "VLLM_SKIP_MODEL_NAME_VALIDATION": ("1", served("skip_model_name_validation"), True),
    "VLLM_MAX_N_SEQUENCES": ("7", served("max_completions"), 7),
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": ("3", served("max_audio_bytes"), 3 * 2**20),
    "VLLM_MAX_AUDIO_DECODE_DURATION_S": ("90", served("max_audio_seconds"), 90),
    "VLLM_BATCH_INVARIANT": ("1", engine_option("deterministic"), True),
    "VLLM_PP_LAYER_PARTITION": ("3,1", engine_option("pp_layer_partition", pipeline_parallel_size=2), "3,1"),
    "VLLM_IMAGE_FETCH_TIMEOUT": ("7", engine_option("image_fetch_timeout"), 7),
    "VLLM_VIDEO_FETCH_TIMEOUT": ("8", engine_option("video_fetch_timeout"), 8),
    "VLLM_AUDIO_FETCH_TIMEOUT": ("9", engine_option("audio_fetch_timeout"), 9),
    "VLLM_MAX_IMAGE_PIXELS": ("1000", engine_option("max_image_pixels"), 1000),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": ("0", engine_option("media_url_allow_redirects"), False),
}
ALWAYS = {  # what they ask for holds whatever their value is
    "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK", "VLLM_USAGE_STATS_SERVER", "VLLM_USAGE_SOURCE",
    "VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_RAISE_ON_LOGIT_NANS", "VLLM_ENABLE_RESPONSES_API_STORE",
}  # fmt: skip


def test_every_variable_that_works_is_seen_to() -> None:
    works = {variable.name for variable in peer_env.VARIABLES if variable.support is Support.WORKS}
    assert works == EFFECTS.keys() | ALWAYS and not EFFECTS.keys() & ALWAYS


@pytest.mark.parametrize("name", EFFECTS)
def test_a_variable_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, found, expected = EFFECTS[name]
    for other in (*env.peer_variables(), "CADENCE_CACHE", "CADENCE_LOG_LEVEL"):
        monkeypatch.delenv(other, raising=False)
    assert found() != expected
    monkeypatch.setenv(name, value)
    assert found() == expected


def test_every_other_variable_is_named_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    for variable in peer_env.VARIABLES:
        caplog.clear()
        if variable.support is Support.REFUSED:
            with pytest.raises(ConfigError, match=f"{variable.name} cannot be honoured"):
                peer_env.applied(EngineArgs(), {variable.name: "1"})
        else:
            peer_env.applied(EngineArgs(), {variable.name: "1"})
            named = [record.getMessage() for record in caplog.records]
            said = f"the variable {variable.name} has no effect here: {variable.why}"
            assert named == ([said] if variable.support is Support.NO_EFFECT else [])


def test_a_level_that_is_none_names_the_variable_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CADENCE_LOG_LEVEL", raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "loud")
    with pytest.raises(ConfigError, match="VLLM_LOGGING_LEVEL='LOUD' is not one of DEBUG"):
        env.log_level()


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
