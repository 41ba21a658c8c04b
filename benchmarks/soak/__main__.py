"""A long day in twenty minutes: mixed traffic, clients that leave, stall or attack, and an engine that is killed.

python -m benchmarks.soak [--minutes 20] [--kills 2] [--name NAME]

Every answer is compared with the same request run alone. No request may be lost. Figures and samples go to
benchmarks/results/soak_NAME.json, a chart beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.soak.chart import draw
from benchmarks.soak.clients import Clients, solo_answers
from benchmarks.soak.killer import Killer
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.questions import make_questions
from benchmarks.soak.sampler import Sampler
from tests.hostile.bounds import Bounds
from tests.hostile.bystander import Bystander, Sight
from tests.hostile.health import Health, Target
from tests.hostile.server import start_server
from tests.hostile.setup import hostile_forms, make_cases

RESULTS = Path(__file__).parents[1] / "results"
LONGEST_PROMPT = 300  # tokens
NUM_QUESTIONS = 42
END_S = 150.0  # for the last requests to end
TOOLS = ("--tool-call-parser", "qwen3_coder")  # its calls are written by the types in a tool's schema


async def soak(target: Target, options: argparse.Namespace) -> tuple[Ledger, Killer, Sampler]:
    ledger = Ledger()
    cases, forms = make_cases(target, options.seed), hostile_forms(target)
    questions = make_questions(NUM_QUESTIONS, LONGEST_PROMPT, options.seed)
    clients = Clients(target.url, await solo_answers(target.url, questions), ledger)
    killer = Killer(target.url, target.pid, options.kills, options.seed)
    sampler = Sampler(target.pid)
    sampler.take()
    loops = [
        *(clients.asks(options.seed + n) for n in range(options.clients)),
        *(clients.reads_slowly(1000 + n) for n in range(2)),
        *(clients.leaves(2000 + n) for n in range(2)),
        clients.stalls(3000),
        *(clients.is_hostile(cases, forms, n * 10**6) for n in range(options.hostile)),
    ]
    working = [asyncio.ensure_future(loop) for loop in loops]
    watching = [asyncio.ensure_future(loop) for loop in (killer.run(clients.over), sampler.run(clients.over))]
    await asyncio.wait([*working, *watching], timeout=options.minutes * 60, return_when=asyncio.FIRST_EXCEPTION)
    clients.over.set()
    _, stuck = await asyncio.wait([*working, *watching], timeout=END_S)
    ledger.lost += len(stuck)
    for task in stuck:
        task.cancel()
    for task in (*working, *watching):
        if task.done() and not task.cancelled() and task.exception():
            raise task.exception()  # type: ignore[misc]
    return ledger, killer, sampler


def run(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    bounds = Bounds(margin=options.margin)
    health = Health(target, bounds)
    bystander = Bystander(target.url)
    try:
        ledger, killer, sampler = asyncio.run(soak(target, options))
        sights = bystander.pause()
    finally:
        bystander.close()
    problems = [problem for problem in health.check() if "engine died" not in problem]  # it was killed
    sampler.take()
    return {
        "machine": describe_machine(),
        "minutes": options.minutes,
        "clients": {"that read": options.clients + 2, "that leave or stall": 3, "hostile": options.hostile},
        "requests": ledger.figures(),
        "kills": _kill_figures(killer, sampler),
        "bystander": _bystander_figures(sights, bystander, sampler.began),
        "processes": sampler.figures(),
        "afterwards": problems or "canaries give the same tokens, nothing runs or waits, every KV block is back",
        "samples": sampler.samples,
    }


def _kill_figures(killer: Killer, sampler: Sampler) -> dict[str, Any]:
    recoveries = killer.recoveries or [0.0]
    return {
        "count": len(killer.recoveries),
        "seconds to health, median": round(statistics.median(recoveries), 2),
        "seconds to health, worst": round(max(recoveries), 2),
        "minutes": [round((moment - sampler.began) / 60, 2) for moment in killer.moments],
    }


def _bystander_figures(sights: list[Sight], bystander: Bystander, began: float) -> dict[str, Any]:
    slowest = sorted((sight for sight in sights if sight.kind == "livez"), key=lambda sight: -sight.seconds)[:10]
    return {
        "longest /livez, ms": round(bystander.worst["livez"] * 1000),
        "slowest /livez, ms at minute": {
            str(round((sight.began - began) / 60, 2)): round(sight.seconds * 1000) for sight in slowest
        },
        "longest gap of a stream, ms": round(bystander.worst["gap"] * 1000),
        "failures": [str(sight) for sight in sights if "failed" in sight.kind][:20],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kills", type=float, default=2.0, help="of the engine, a minute")
    parser.add_argument("--clients", type=int, default=12, help="that read their answers as they come")
    parser.add_argument("--hostile", type=int, default=2, help="clients that send generated hostile requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--margin", type=float, default=4.0, help="stretches bounds on times after the soak")
    parser.add_argument("--name", default=time.strftime("%Y%m%d_%H%M"), help="of the files with the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, start_server(Path(folder), *TOOLS) as target:
        found = run(target, options)
    path = RESULTS / f"soak_{options.name}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    draw(found, path.with_suffix(".png"))
    print(json.dumps({key: value for key, value in found.items() if key != "samples"}, indent=2))
    print(f"written: {path}")
    bad = found["requests"]["lost"] or found["requests"]["wrong"] or isinstance(found["afterwards"], list)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
