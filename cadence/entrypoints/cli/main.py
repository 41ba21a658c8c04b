"""The command `cadence`. A subcommand's module is imported when it is called, so that `--help` costs nothing."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from cadence.config import env, peer_env
from cadence.config.args import nearest
from cadence.config.cli import fail
from cadence.config.version import __version__
from cadence.core.errors import CadenceError

# name -> (module with `run(argv) -> exit status`, what it does)
COMMANDS = {
    "serve": ("cadence.entrypoints.cli.serve", "serve a model over HTTP, as OpenAI does"),
    "generate": ("cadence.entrypoints.cli.generate", "complete a prompt and stream the text"),
    "chat": ("cadence.entrypoints.cli.chat.command", "talk with a model in the terminal"),
    "complete": ("cadence.entrypoints.cli.complete", "complete a prompt on a server"),
    "embed": ("cadence.entrypoints.cli.embed", "embed texts, and compare them"),
    "transcribe": ("cadence.entrypoints.cli.transcribe.command", "write down what is said in recordings"),
    "run-batch": ("cadence.entrypoints.cli.run_batch.command", "answer a file of OpenAI batch requests"),
    "bench": ("cadence.entrypoints.cli.bench", "measure latency, throughput, or a server under load"),
    "quantize": ("cadence.entrypoints.cli.quantize.command", "write a model's weights in few bits, as a checkpoint"),
    "save-sharded": ("cadence.entrypoints.cli.save_sharded", "cut a model's weights for ranks, each in its own files"),
    "models": ("cadence.entrypoints.cli.models.command", "list what can be run, or say what a model would become"),
    "collect-env": ("cadence.entrypoints.cli.collect_env", "describe this machine for a report"),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] in ("-v", "--version", "version"):
        print(f"cadence {__version__}")
        return 0
    name = words[0].replace("_", "-")
    if name not in COMMANDS:
        fail("cadence", CadenceError(f"unknown command {words[0]}{nearest(name, COMMANDS)} (see cadence --help)"))
    return _run(name, words[1:])


def usage() -> str:
    lines = [f"  {name:<14}{help}" for name, (_, help) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: cadence COMMAND [flags]",
            "",
            "Run large language models.",
            "",
            *lines,
            "",
            "  -v, --version   print the version",
            "  -h, --help      print this; `cadence COMMAND --help` lists the flags of a command",
        ]
    )


def _run(name: str, argv: list[str]) -> int:
    prog = f"cadence {name}"
    try:
        _set_up_logging()
        peer_env.check(env.peer_variables())
        module = importlib.import_module(COMMANDS[name][0])
        return int(module.run(argv))
    except CadenceError as error:
        fail(prog, error)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again during exit, it would print a traceback
        return 130
    except BrokenPipeError:
        # The reader has left. Python flushes stdout once more on its way out and must find it open.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _set_up_logging() -> None:
    import logging

    logging.basicConfig(level=env.log_level(), format="%(levelname)s: %(message)s")


if __name__ == "__main__":
    sys.exit(main())
