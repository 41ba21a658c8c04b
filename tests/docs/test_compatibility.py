"""The tables of docs/compatibility.md say what the program does."""

from __future__ import annotations

from cadence.config.peers.peer_table import FLAGS
from tests.docs.flag_tables import PAGE, marked, with_tables


def test_the_page_has_the_tables_of_the_data() -> None:
    page = PAGE.read_text()
    for name in ("flags", "keys", "variables"):
        assert all(page.count(mark) == 1 for mark in marked(name))
    assert page == with_tables(page), "run: python -m tests.docs.flag_tables"
    assert all(f"| `{flag.flag}`" in page for flag in FLAGS.values())
