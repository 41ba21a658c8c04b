"""Sends cases again, one at a time, and says what each did to the server.

python -m tests.hostile.replay --seed 1 39 79            against a server of its own, on a tiny random llama
python -m tests.hostile.replay --seed 1 --range 0 2000   many; the server is started again when it is gone
python -m tests.hostile.replay --seed 1 39 --url http://127.0.0.1:8000 --pid 1234
python -m tests.hostile.replay --seed 1 39 --show        only prints the request, as curl would send it
python -m tests.hostile.replay --known                   the faults that were known before, one after another
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hostile.bounds import Bounds
from tests.hostile.campaign import Campaign, Pace
from tests.hostile.cases import Cases
from tests.hostile.health import Target
from tests.hostile.known_faults import ALL, known_case
from tests.hostile.report import KNOWN, Report, shown
from tests.hostile.server import start_server
from tests.hostile.setup import make_cases


def main() -> None:
    options = _options()
    numbers = [*options.numbers, *range(*options.range)]
    if options.known and not numbers:
        numbers = list(range(len(ALL)))
    found = 0
    while numbers:
        with _target(options) as target:
            cases = make_cases(target, options.seed)
            if options.show:
                _show(cases, numbers)
                return
            done, findings = _run(target, cases, numbers, options)
        found += findings
        numbers = [] if options.url else numbers[done:]
    raise SystemExit(1 if found else 0)


def _run(target: Target, cases: Cases, numbers: Sequence[int], options: argparse.Namespace) -> tuple[int, int]:
    pace = Pace(batch=options.batch, connections=min(options.batch, 8), max_findings=10**6)
    seed = KNOWN if options.known else options.seed
    report = Report(seed, lambda finding: print(*shown(finding, seed), sep="\n", flush=True))
    with Campaign(target, Bounds(margin=options.margin), report, pace) as campaign:
        campaign.run(known_case if options.known else cases.case, numbers)
    print(report.summary(), flush=True)
    return report.num_requests, len(report.findings)


@contextlib.contextmanager
def _target(options: argparse.Namespace) -> Iterator[Target]:
    if options.url:
        yield Target(options.url, options.pid)
        return
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder, start_server(Path(folder)) as target:
        yield target


def _show(cases: Cases, numbers: Sequence[int]) -> None:
    for number in numbers:
        case = cases.case(number)
        print(case)
        print(case.request.head().decode("utf-8", "replace"), end="")
        print(
            case.request.body[:4000].decode("utf-8", "backslashreplace"), "…" if len(case.request.body) > 4000 else ""
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=int, nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--range", type=int, nargs=2, default=(0, 0))
    parser.add_argument("--batch", type=int, default=1, help="cases between two looks at the server")
    parser.add_argument("--margin", type=float, default=1.0, help="stretches the bounds on times")
    parser.add_argument("--url", default="")
    parser.add_argument("--pid", type=int, default=0, help="of the server, to look at its memory")
    parser.add_argument("--known", action="store_true", help="of the list of known faults, not of the generator")
    parser.add_argument("--show", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
