"""One reader of one page: a folder, a shell and a Python interpreter, used for all of its blocks in order."""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.docs.blocks import DATA, ROOT, SHELL, Block
from tests.docs.commands import check_unrun
from tests.docs.given import give
from tests.docs.network import Network
from tests.docs.servers import Servers
from tests.docs.warm_commands import WarmCommands

BLOCK_S = 900  # a guard for busy machines; what takes more than seconds is `not run: runs for long`
_NOT_LINKED = {".git", ".venv", "build"}


class Session:
    def __init__(self, folder: Path, network: Network, servers: Servers, warm: WarmCommands | None = None) -> None:
        """warm: forks commands and the interpreter, instead of starting them"""
        self.folder = folder / "cadence"  # as after `git clone`
        self._network, self._servers, self._warm = network, servers, warm
        self._state, self._log = folder / "shell_state", folder / "python.log"
        self._python: subprocess.Popen[str] | None = None
        self._printed = ""  # by the last block
        self.folder.mkdir()
        for entry in ROOT.iterdir():
            if entry.name not in _NOT_LINKED and not entry.name.endswith("cache"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / ".venv").symlink_to(sys.prefix)
        (folder / ".curlrc").write_text("fail-with-body\nno-progress-meter\nmax-time = 600\n")
        self.env = environment(folder)
        if warm is not None:
            self.env["PATH"] = f"{warm.folder}:{self.env['PATH']}"

    def run(self, block: Block) -> None:
        start = time.monotonic()
        self._run(block)
        print(f"{block.page}:{block.line}: {time.monotonic() - start:.1f} s")  # shown by pytest -rP

    def _run(self, block: Block) -> None:
        if block.given:
            give(block.given, self.folder)
        if block.file:
            self._write(block)
        if block.language in DATA:
            _parse(block)
        elif block.is_output:
            self._compare(block)
        elif block.file or block.language == "text":
            return
        elif block.not_run:
            self._check(block)
        else:
            self._execute(block)

    def close(self) -> None:
        if self._python is not None:
            assert self._python.stdin is not None
            self._python.stdin.close()
            try:
                self._python.wait(timeout=120)
            except subprocess.TimeoutExpired:
                self._python.kill()
                self._python.wait(timeout=120)

    def _write(self, block: Block) -> None:
        path = self.folder / block.file
        if path.is_symlink() or not path.resolve().is_relative_to(self.folder.resolve()):
            raise block.error(f"file: {block.file} would be written over a file of the repository")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _check(self, block: Block) -> None:
        if block.language in SHELL:
            check_unrun(block, self.folder)
        elif block.language == "python":
            compile("\n" * block.line + block.text, block.page, "exec")

    def _execute(self, block: Block) -> None:
        if block.run == "server":
            self._servers.ensure(block, self.folder, self.env)
            return
        if block.run == "after-server":
            self._servers.ensure_default(self.env)
        failed = self._run_python(block) if block.language == "python" else self._run_shell(block)
        if failed and block.run != "fails":
            raise block.error(f"{failed}\n{self._printed[-6000:]}")
        if block.run == "fails" and not failed:
            raise block.error(f"says that it fails, and does not:\n{self._printed[-6000:]}")

    def _run_shell(self, block: Block) -> str:
        """What went wrong, or nothing. Variables, exported or not, and the folder are kept for the next block."""
        state = shlex.quote(str(self._state))
        script = f"[ -f {state} ] && . {state}; set -aeo pipefail\ntrap 'export -p >{state}' EXIT\n{block.commands}"
        process = subprocess.Popen(
            [*self._network.enter, "bash", "-c", script],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            self._printed, _ = process.communicate(timeout=BLOCK_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            self._printed, _ = process.communicate(timeout=120)
            return f"still runs after {BLOCK_S} s"
        return f"exit status {process.returncode}" if process.returncode else ""

    def _run_python(self, block: Block) -> str:
        if self._python is None:
            self._python = self._start_python()
        process, start = self._python, self._log.stat().st_size
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"page": block.page, "line": block.line, "text": block.text}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline() if _readable(process.stdout, BLOCK_S) else ""
        with open(self._log, encoding="utf-8", errors="replace") as log:
            log.seek(start)
            self._printed = log.read()
        if not answer:
            process.kill()
            return f"the interpreter died, or ran for more than {BLOCK_S} s"
        return str(json.loads(answer))

    def _start_python(self) -> subprocess.Popen[str]:
        with open(self._log, "w") as log:
            return subprocess.Popen(
                self._interpreter(),
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _interpreter(self) -> list[str]:
        if self._warm is not None:
            return [str(self._warm.folder / "interpreter")]
        return [*self._network.enter, sys.executable, str(Path(__file__).with_name("interpreter.py"))]

    def _compare(self, block: Block) -> None:
        """Every line of the block stands in what was printed, in this order."""
        rest = self._printed
        for line in filter(None, (line.strip() for line in block.text.splitlines())):
            found = re.search(".*?".join(re.escape(part) for part in line.split("…")), rest)
            if found is None:
                raise block.error(f"{line!r} was not printed; printed was:\n{self._printed[-4000:]}")
            rest = rest[found.end() :]


def environment(folder: Path) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "TRITON", "VLLM"))}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return env | {"CURL_HOME": str(folder), "LC_ALL": "C.UTF-8", "PWD": str(folder / "cadence")}


def _parse(block: Block) -> Any:
    try:
        match block.language:
            case "jsonl":
                return [json.loads(line) for line in block.text.splitlines() if line.strip()]
            case "json":
                return json.loads(block.text)
            case "yaml":
                return list(yaml.safe_load_all(block.text))
            case "toml":
                return tomllib.loads(block.text)
    except (ValueError, yaml.YAMLError) as error:
        raise block.error(f"no {block.language}: {error}") from None


def _readable(stream: Any, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(seconds))
