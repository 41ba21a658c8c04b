"""`cadence collect-env`: what a report about a problem needs. No environment variables, no user names, no secrets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cadence.config.cli import Parser
from cadence.engine.machine import machine_facts
from cadence.entrypoints.cli.report import columns


def run(argv: Sequence[str]) -> int:
    Parser("cadence collect-env", "Describe this machine: versions, CPU, memory, GPU, compiler.").parse(argv)
    print(columns(machine_facts()))
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
