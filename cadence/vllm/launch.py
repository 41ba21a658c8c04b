"""Runs a program in which `import vllm` means Cadence: Python itself, with one more folder on its path.

The folder is on PYTHONPATH, so processes that the program starts find it too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cadence.config import env
from cadence.config.cli import fail
from cadence.config.reference import MODEL_MAP, find_mapped
from cadence.core.errors import ConfigError

PROG = "python -m cadence.vllm"
FOLDER = Path(__file__).resolve().parent / "on_path"
USAGE = f"""usage: {PROG} [--model-map OLD=NEW] ... SCRIPT [args]
       {PROG} [--model-map OLD=NEW] ... -m MODULE [args]
       {PROG} [--model-map OLD=NEW] ... -c CODE [args]
       {PROG} --path

Run a program that says `import vllm` with Cadence in its place.

  --model-map OLD=NEW   where the program names the model OLD, take NEW (may be given several times)
  --path                print the folder that does it, for PYTHONPATH
  -h, --help            print this"""


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words == ["--path"]:
        print(FOLDER)
        return 0
    try:
        mapped = _take_models(words)
    except ConfigError as error:
        fail(PROG, error)
    if not words:
        fail(PROG, ConfigError("there is no program to run: name a script, -m MODULE or -c CODE"))
    options = ["-X", f"{MODEL_MAP}={json.dumps(mapped)}"] if mapped else []
    # The interpreter's own flags (-O, -W, ...) go on to the program.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, *options, *words]
    sys.stdout.flush()
    os.execve(sys.executable, command, env.with_python_path(FOLDER))


def _take_models(words: list[str]) -> dict[str, str]:
    """Removes the options of this launcher from the front of `words`."""
    mapped = find_mapped()
    while words and words[0].startswith("--"):
        flag, equals, value = words.pop(0).partition("=")
        if flag.replace("_", "-") != "--model-map":
            raise ConfigError(f"unknown option {flag}; options of the program come after its name")
        if not equals:
            value = words.pop(0) if words else ""
        old, separator, new = value.partition("=")
        if not separator or not old or not new:
            raise ConfigError(f"--model-map {value!r}: expected OLD=NEW, for example facebook/opt-125m=smollm2")
        mapped[old] = new
    return mapped
