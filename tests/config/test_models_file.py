"""`--models`: what a file or the words of a command line say, and every mistake in one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cadence.config.cli import Parser
from cadence.config.server.models_file import ModelEntry, models_of, seconds_of
from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.serve_flags import build_parser
from cadence.entrypoints.cli.serve_models import OF_A_MODEL, read_plans


def written(folder: Path, models: Any, name: str = "models.json") -> str:
    path = folder / name
    path.write_text(json.dumps({"models": models}))
    return str(path)


def test_words_and_files_together(tmp_path: Path) -> None:
    given = {
        "name": "b",
        "model": "org/b",
        "aliases": ["c"],
        "options": {"max-model-len": 99},
        "load": "start",
        "keep_alive": "5m",
        "idle": "sleep",
        "pinned": True,
        "default": True,
    }
    found = models_of(["a=/x/y", "org/Some-Model", "/z/w.gguf", written(tmp_path, [given])])
    assert found[0] == ModelEntry("a", "/x/y") and found[0].keep_alive == math.inf and found[0].idle == "unload"
    assert [entry.name for entry in found[1:3]] == ["Some-Model", "w"]
    assert found[3] == ModelEntry("b", "org/b", ("c",), {"max-model-len": 99}, "start", 300.0, "sleep", True, True)
    yaml = tmp_path / "models.yaml"
    yaml.write_text("models:\n  - name: b\n    model: org/b\n    keep_alive: -1\n")
    assert models_of([str(yaml)]) == (ModelEntry("b", "org/b"),)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (300, 300.0),
        ("300", 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        (0, 0.0),
        ("0", 0.0),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1s", math.inf),
        ("1d", 86400.0),
    ],
)
def test_durations(given: object, seconds: float) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["", "5 minutes", "m", None, True, [], "5x", "1e", "nan"])
def test_what_is_no_duration(given: object) -> None:
    with pytest.raises(ValueError, match="such as 5m"):
        seconds_of(given)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([], "expected `models`, a list"),
        ({}, "expected `models`, a list"),
        ([{"name": "a"}], r"model 1: `model` must be an alias, a path or a hub id"),
        ([{"name": "", "model": "x"}], "model 1: `name` must be a text"),
        ([{"model": "x", "nmae": "a"}], "model 1: unknown nmae; known are name, model, aliases"),
        ([{"model": "x", "load": "later"}], r"model 1 \(x\): load='later' is not one of first_request, start"),
        ([{"model": "x", "keep_alive": "soon"}], r"model 1 \(x\): keep_alive='soon': expected seconds"),
        ([{"model": "x", "pinned": 1}], "`pinned` must be true or false"),
        ([{"model": "x", "options": ["a"]}], "`options` must be names of flags"),
        ([{"model": "x", "aliases": "a"}], "`aliases` must be a list"),
        ([{"model": "x"}, {"model": "y", "aliases": ["x"]}], "two models are named x"),
        ([{"model": "x", "default": True}, {"model": "y", "default": True}], "two models are the default"),
        (["x"], "model 1: expected `name`, `model`"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, models: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        models_of([written(tmp_path, models)])


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        models_of([str(tmp_path / "none.json")])
    with pytest.raises(ConfigError, match="expected NAME=MODEL"):
        models_of(["a="])


def plans(*words: str) -> Any:
    return read_plans(build_parser(Parser).parse(words))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model without weights: what is read before anything is loaded."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "vocab_size": 32, "intermediate_size": 8, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_options_of_one_win_over_those_of_all(tmp_path: Path, folder: str) -> None:
    own = {"max_model_len": 32, "tool-call-parser": "hermes", "hf-overrides.rope_theta": 5}
    file = written(
        tmp_path, [{"name": "a", "model": folder, "aliases": ["b"], "options": own}, {"name": "c", "model": folder}]
    )
    options, (first, second) = plans("--models", file, "--max-model-len", "64", "--port", "81", "--api-key", "k")
    assert options.port == 81 and options.api_key == ["k"] and options.models_memory is None
    assert (first.args.max_model_len, second.args.max_model_len) == (32, 64)
    assert first.options.tool_call_parser == "hermes" and not second.options.tool_call_parser
    assert first.args.hf_overrides == {"rope_theta": 5} and first.args.model == folder
    assert first.options.served_model_name == ["a", "b"] and second.options.served_model_name == ["c"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max-model-lne": 3}, "model a: unknown flag --max-model-lne; did you mean --max-model-len"),
        ({"max-model-len": "many"}, "model a: .*max_model_len"),
        ({"port": 3}, "model a: port is not an option of one model"),
        ({"model": "x"}, "model a: model is said by `model` of the model"),
        ({"served-model-name": "x"}, "said by `name` and `aliases`"),
        ({"config": "x.yaml"}, "config is not an option of one model"),
        ({"reasoning-parser": "none-such"}, "model a: .*none-such"),
    ],
)
def test_mistakes_in_options_are_told_as_on_the_command_line(
    tmp_path: Path, folder: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plans("--models", written(tmp_path, [{"name": "a", "model": folder, "options": options}]))


def test_mistakes_beside_the_file(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ConfigError, match=r"model a: .*/none/such"):
        plans("--models", "a=/none/such")
    with pytest.raises(ConfigError, match="smollm2 beside --models"):
        plans("smollm2", "--models", f"a={folder}")
    with pytest.raises(ConfigError, match="--served-model-name is for one model"):
        plans("--models", f"a={folder}", "--served-model-name", "b")
    with pytest.raises(ConfigError, match="--api-server-count is for one model"):
        plans("--models", f"a={folder}", "--api-server-count", "2")


def test_options_of_a_model_are_options_of_the_server() -> None:
    assert {name for name in OF_A_MODEL if not hasattr(ServeOptions(), name)} == set()
