"""The tables of docs/compatibility.md, made from the data that drives the command line.

python -m tests.docs.flag_tables        # writes them into the page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cadence.config.peer_env import VARIABLES
from cadence.config.peers.peer_draft_keys import KEYS
from cadence.config.peers.peer_flag import PeerFlag, Support
from cadence.config.peers.peer_table import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def flag_tables() -> str:
    return "\n".join(_flag_lines())


def _flag_lines() -> Iterator[str]:
    flags = [flag for group in GROUPS for flag in group.flags]
    counts = {support: sum(flag.support is support for flag in flags) for support in Support}
    yield (
        f"Of {len(flags)} flags {counts[Support.WORKS]} work, {counts[Support.NO_EFFECT]} have no effect and "
        f"{counts[Support.REFUSED]} are refused."
    )
    for group in GROUPS:
        yield from ("", f"### {group.title}", "", "| flag | here | |", "|---|---|---|")
        yield from map(_flag_line, group.flags)


def _flag_line(flag: PeerFlag) -> str:
    return _line(", ".join(f"`{name}`" for name in (flag.flag, flag.short) if name), flag)


def _line(names: str, flag: PeerFlag) -> str:
    notes = [flag.why]
    taken = [value for value in flag.neutral if value not in (None, "", False, True, 0, {}, [])]
    if flag.support is Support.REFUSED and taken:
        notes.append(f"taken: {', '.join(f'`{value}`' for value in taken)}")
    if flag.hints:
        notes.append(f"accepted, without effect: {', '.join(f'`{value}`' for value in flag.hints)}")
    return f"| {names} | {flag.support.value} | {'; '.join(filter(None, notes)).replace('|', chr(92) + '|')} |"


def draft_key_table() -> str:
    """Keys of `speculative_config` that have no option here."""
    return "\n".join(["| key | here | |", "|---|---|---|", *(_line(f"`{name}`", key) for name, key in KEYS.items())])


def variable_table() -> str:
    lines = ["| variable | here | |", "|---|---|---|"]
    return "\n".join(lines + [f"| `{one.name}` | {one.support.value} | {one.why} |" for one in VARIABLES])


def marked(name: str) -> tuple[str, str]:
    return f"<!-- {name}: made by tests/docs/flag_tables.py -->", f"<!-- end of {name} -->"


def with_tables(page: str) -> str:
    """`page` with the tables between their marks."""
    for name, table in (
        ("flags", flag_tables()),
        ("keys", draft_key_table()),
        ("variables", variable_table()),
    ):
        begin, end = marked(name)
        before, _, rest = page.partition(begin)
        after = rest.partition(end)[2]
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
