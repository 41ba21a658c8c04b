"""The benchmarks as scripts for vLLM run them: flags for a parser of their own, and a call with what it parsed."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from cadence.entrypoints.cli import bench
from cadence.entrypoints.cli.bench_serve import command, flags


def add_serve_args(parser: argparse.ArgumentParser) -> None:
    flags.add_flags(parser)


def serve(args: argparse.Namespace) -> dict[str, Any]:
    """`cadence bench serve`. -> its numbers"""
    return command.run_flags(args)


async def serve_async(args: argparse.Namespace) -> dict[str, Any]:
    """In a thread with an event loop of its own, whatever this one does meanwhile."""
    return await asyncio.to_thread(command.run_flags, args)


def add_latency_args(parser: argparse.ArgumentParser) -> None:
    bench.add_flags(parser, bench.LATENCY)


def latency(args: argparse.Namespace) -> None:
    """`cadence bench latency`"""
    bench.measure_latency(args)


def add_throughput_args(parser: argparse.ArgumentParser) -> None:
    bench.add_flags(parser, bench.THROUGHPUT)


def throughput(args: argparse.Namespace) -> None:
    """`cadence bench throughput`"""
    bench.measure_throughput(args)
