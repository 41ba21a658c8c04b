"""`cadence serve`: an OpenAI-compatible server."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cadence.config.local_files import check_local_files
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.serve_flags import build_parser, check_formats, read_flags


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    if getattr(flags, "models", None):
        from cadence.entrypoints.cli.serve_models import run_models

        return run_models(flags)
    args, options = read_flags(flags)
    check_local_files(args)
    if options.headless:
        from cadence.entrypoints.cli.headless import run_headless

        return run_headless(args)

    check_formats(args, options)
    from cadence.entrypoints.server.replacement import bind_or_inherit  # imports numpy

    bound, replacement = bind_or_inherit(options)
    try:
        from cadence.entrypoints.server.server import run_server
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'cadence-llm[serve]'", "serve") from None
    if options.enable_log_requests:
        logging.getLogger("cadence.server").setLevel(logging.INFO)
    return run_server(args, options, bound, replacement=replacement)
