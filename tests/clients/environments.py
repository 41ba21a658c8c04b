"""Where clients are installed: one virtual environment per list of requirements, and one folder for Node's packages.

All below build/clients, which git ignores. A list that did not change is not installed again."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "clients"
TORCH = ROOT / "requirements" / "torch.txt"  # its build for this machine, before whatever asks for it
INSTALL_S = 1200.0


class CannotInstallError(Exception):
    """Why a client is skipped."""


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    name: str

    @property
    def folder(self) -> Path:
        return BUILD / self.name

    @property
    def requirements(self) -> list[Path]:
        own = HERE / "requirements" / f"{self.name}.txt"
        return [TORCH, own] if TORCH.name in own.read_text() else [own]

    def install(self) -> None:
        if _installed(self.folder, self.requirements):
            return
        if not self._python().exists():
            _run([sys.executable, "-m", "venv", str(self.folder)])
        pip = [str(self._python()), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for path in self.requirements:  # but for torch the lists are complete: nothing is left to be resolved
            _run([*pip, *(["-r", str(path)] if path == TORCH else ["--no-deps", "-r", str(path)])])
        _mark(self.folder, self.requirements)

    def version(self, package: str) -> str:
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return _run([str(self._python()), "-c", code]).strip()

    def command(self, script: str) -> list[str]:
        return [str(self._python()), str(HERE / script)]

    def arguments(self) -> list[str]:
        return []

    def _python(self) -> Path:
        return self.folder / "bin" / "python"


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """Scripts are copied beside the packages, where Node looks for them. Python scripts drive the commands."""

    folder: Path = BUILD / "node"

    def install(self) -> None:
        locks = [HERE / "node" / "package.json", HERE / "node" / "package-lock.json"]
        for tool in ("node", "npm"):
            if shutil.which(tool) is None:
                raise CannotInstallError(f"there is no {tool} on this machine")
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in (HERE / "node").iterdir():
            shutil.copy(path, self.folder)
        if _installed(self.folder, locks):
            return
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], self.folder)
        agent = self.folder / "node_modules" / "@anthropic-ai" / "claude-code"
        _run(["node", "install.cjs"], agent)  # puts the program for this machine in its place
        _mark(self.folder, locks)

    def version(self, package: str) -> str:
        return str(json.loads((self.folder / "node_modules" / package / "package.json").read_text())["version"])

    def command(self, script: str) -> list[str]:
        if script.endswith(".py"):
            return [sys.executable, str(HERE / script)]
        return ["node", str(self.folder / Path(script).name)]

    def arguments(self) -> list[str]:
        return [str(self.folder / "node_modules" / ".bin")]


Environment = PythonEnvironment | NodeEnvironment


def environment(name: str) -> Environment:
    return NodeEnvironment() if name == "node" else PythonEnvironment(name)


def _run(command: list[str], folder: Path = ROOT) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise CannotInstallError(f"{command[0]} took longer than {INSTALL_S:.0f} s") from None
    if done.returncode:
        said = (
            [line for line in done.stderr.splitlines() if "rror" in line] or done.stderr.splitlines() or ["no reason"]
        )
        raise CannotInstallError(said[0][:300])
    return done.stdout


def _digest(lists: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in lists)).hexdigest()


def _installed(folder: Path, lists: list[Path]) -> bool:
    stamp = folder / ".installed"
    return stamp.exists() and stamp.read_text() == _digest(lists)


def _mark(folder: Path, lists: list[Path]) -> None:
    (folder / ".installed").write_text(_digest(lists))
