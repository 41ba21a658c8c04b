"""The laws hold, except where allow_list.txt says why not. That list may only shrink."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cadence.config import env
from tests.arch import checks
from tests.arch.source import ROOT, all_sources

ALLOW_LIST = Path(__file__).with_name("allow_list.txt")


def read_allow_list(text: str) -> dict[str, set[str]]:
    """Lines `check subject  # reason`."""
    allowed: dict[str, set[str]] = {}
    for line in text.splitlines():
        entry, _, reason = line.partition("#")
        if entry.strip():
            check, subject = entry.split()
            assert reason.strip(), f"{line!r} gives no reason"
            allowed.setdefault(check, set()).add(subject)
    return allowed


@pytest.mark.parametrize("check", checks.ALL, ids=lambda check: check.__name__)
def test_law(check: checks.Check) -> None:
    found = {violation.subject: violation for violation in check(all_sources())}
    allowed = read_allow_list(ALLOW_LIST.read_text(encoding="utf-8")).get(check.__name__, set())
    new = [f"{found[subject].subject}: {found[subject].message}" for subject in sorted(set(found) - allowed)]
    assert not new, "\n".join(new)
    stale = sorted(allowed - set(found))
    assert not stale, f"no longer needed, take them off {ALLOW_LIST.name}: {stale}"


def test_allow_list_names_existing_checks() -> None:
    known = {check.__name__ for check in checks.ALL}
    assert set(read_allow_list(ALLOW_LIST.read_text(encoding="utf-8"))) <= known


def test_rooms_form_no_cycle() -> None:
    """Laid out in order, every room imports only rooms before it."""
    done: set[str] = set()
    waiting = dict(checks.MAY_IMPORT)
    while waiting:
        ready = [room for room, below in waiting.items() if below <= done]
        assert ready, f"cycle among {sorted(waiting)}"
        for room in ready:
            done.add(room)
            del waiting[room]


def test_hot_files_exist() -> None:
    assert [path for path in checks.HOT_FILES if not (ROOT / path).is_file()] == []


def test_at_most_ten_environment_variables() -> None:
    assert len(env.NAMES) <= 10


def test_host_half_loads_without_torch() -> None:
    """Also what they import in turn: a fresh interpreter has no torch after importing every module of the host half."""
    modules = [source.module for source in all_sources() if source.room in checks.HOST_ROOMS]
    modules += ["cadence", "cadence.entrypoints.cli.main", "cadence.entrypoints.cli.generate"]
    program = (
        f"import sys\nfor name in {modules!r}:\n    __import__(name)\n"
        "bad = {'torch', 'transformers', 'rich', 'huggingface_hub', 'yaml'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
