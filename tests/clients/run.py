"""Real clients against real servers, `make clients`:

    python -m tests.clients.run                     all of them, and a table of what passed
    python -m tests.clients.run "Codex CLI" LiteLLM  only these
    python -m tests.clients.run --write              and keep the table in docs/using/clients.md

Each client is installed from PyPI or npm, and skipped with a reason where it cannot be had. Its script talks to two
servers on loopback: SmolLM2 as users serve it, and a scripted one for what so small a model cannot do. Those that
transcribe talk to a tiny Whisper, about a recording of three seconds; those that send pictures to a tiny LLaVA, whose
words mean nothing: they have to be the same for the same picture, and others for another.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.clients.catalog import CLIENTS, PICTURES, SPEECH, Client
from tests.clients.environments import BUILD, CannotInstallError, environment
from tests.clients.recorder import Record, recorded
from tests.clients.scripted import scripted_server
from tests.clients.table import keep_results, table
from tests.helpers.recordings import tone, wav_file
from tests.helpers.seeing import noise
from tests.helpers.tiny_vision import make_vision
from tests.helpers.tiny_whisper import make_whisper
from tests.server.helpers import ServerProcess

REAL_FLAGS = (
    "--tool-call-parser", "hermes", "--enable-auto-tool-choice", "--enable-tokenizer-info-endpoint",
    "--override-generation-config", json.dumps({"temperature": 0, "max_new_tokens": 64}),
)  # fmt: skip
QUIET = {"LANGSMITH_TRACING": "false", "LITELLM_TELEMETRY": "False", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
NO_PROXY = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


@dataclass(slots=True)
class Outcome:
    client: str
    version: str = ""
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # check -> why
    skipped: str = ""  # why


def run_client(client: Client, words: list[str]) -> Outcome:
    """words: what its script is told of its servers"""
    place = environment(client.environment)
    try:
        place.install()
        outcome = Outcome(client.name, place.version(client.package))
    except CannotInstallError as error:
        return Outcome(client.name, skipped=f"cannot be installed: {error}")
    output = BUILD / f"{Path(client.script).stem}-{client.environment}.log"
    status = _run([*place.command(client.script), *words, *place.arguments()], output, client.seconds)
    for line in output.read_text(errors="replace").splitlines():
        if line.startswith("CHECK "):
            told = json.loads(line.removeprefix("CHECK "))
            if told["failed"]:
                outcome.failed[told["check"]] = told["failed"]
            else:
                outcome.passed.append(told["check"])
    if not outcome.failed and (status or not outcome.passed):
        outcome.failed["script"] = f"ended with status {status} after {len(outcome.passed)} checks, see {output}"
    return outcome


def _run(command: list[str], output: Path, seconds: float) -> int:
    """The exit status; past its time a script is killed together with what it started."""
    with output.open("w") as log:
        settings = {**os.environ, **QUIET, **NO_PROXY}
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=settings, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def servers(record: Record | None) -> Iterator[list[str]]:
    """Their addresses: the scripted one, then the real one."""
    with scripted_server() as scripted, ServerProcess("smollm2", *REAL_FLAGS) as real:
        urls = [scripted.url, real.url]
        with contextlib.ExitStack() as proxies:
            yield [proxies.enter_context(recorded(url, record)) for url in urls] if record else urls


@contextlib.contextmanager
def speech() -> Iterator[list[str]]:
    """The address of a server that hears, and a recording."""
    with tempfile.TemporaryDirectory(prefix="cadence-speech-") as directory:
        recording = Path(directory) / "tone.wav"
        recording.write_bytes(wav_file(tone(3.0)))
        model = make_whisper(Path(directory) / "whisper")
        with ServerProcess(model, "--dtype", "float32", "--served-model-name", "whisper") as server:
            yield [server.url, str(recording)]


@contextlib.contextmanager
def pictures() -> Iterator[list[str]]:
    """The address of a server that sees, and two pictures."""
    with tempfile.TemporaryDirectory(prefix="cadence-pictures-") as directory:
        folder = Path(directory)
        files = [folder / "first.png", folder / "second.jpg"]
        noise(60, 40, 1).save(files[0])
        noise(40, 90, 2).save(files[1])
        flags = ("--dtype", "float32", "--served-model-name", "llava", "--enable-prompt-embeds")
        with ServerProcess(make_vision("llava", folder / "llava"), *flags) as server:
            yield [server.url, *map(str, files)]


def run_all(chosen: list[Client], record: Record | None) -> list[Outcome]:
    outcomes = []
    places = {"": lambda: servers(record), SPEECH: speech, PICTURES: pictures}
    for name, opened in places.items():
        some = [client for client in chosen if client.server == name]
        if not some:
            continue
        with opened() as words:
            for client in some:
                started = time.monotonic()
                if record:
                    record.client = client.name
                outcomes.append(run_client(client, words))
                print(f"{client.name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Run real clients against Cadence.")
    parser.add_argument("names", nargs="*", metavar="CLIENT", help=", ".join(client.name for client in CLIENTS))
    parser.add_argument("--write", action="store_true", help="keep the results in tests/clients and docs")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write every request, a line of JSON each")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`: servers and clients end with it
    chosen = [client for client in CLIENTS if not options.names or client.name in options.names]
    if unknown := set(options.names) - {client.name for client in CLIENTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    BUILD.mkdir(parents=True, exist_ok=True)
    outcomes = run_all(chosen, Record(options.record) if options.record else None)
    print(table([asdict(outcome) for outcome in outcomes]))
    for outcome in outcomes:
        for check, why in outcome.failed.items():
            print(f"\n{outcome.client}, {check}: {why[:1000]}")
    if options.write:
        keep_results([asdict(outcome) for outcome in outcomes])
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
