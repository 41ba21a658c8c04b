"""`cadence serve --headless`: a node that provides ranks to the engine of the first node, and serves nothing itself."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from cadence.config.args import EngineArgs
from cadence.config.cli import fail
from cadence.config.parallel import resolve_parallel
from cadence.config.reference import find_model
from cadence.core.errors import CadenceError, ConfigError


def run_headless(args: EngineArgs) -> int:
    parallel = resolve_parallel(args)
    if parallel.nodes.count == 1 or parallel.nodes.rank == 0:
        where = f"nnodes={parallel.nodes.count}, node_rank={parallel.nodes.rank}"
        raise ConfigError(f"headless is for the nodes after the first, and this is {where}", "headless")
    options = {"revision": args.revision, "download_dir": args.download_dir, "token": args.hf_token}
    files = find_model(args.model, **{name: str(value) for name, value in options.items() if value})
    from cadence.executor.headless import run_node
    from cadence.executor.network.model_digest import model_digest

    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        return run_node(parallel, files.path, model_digest(files), lambda: not stopped.is_set())
    except CadenceError as error:
        fail("cadence serve", error, status=1)  # whatever it is, it was said by the first node
