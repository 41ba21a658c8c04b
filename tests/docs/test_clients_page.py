"""The table of clients in the documents is that of the last run of `make clients`, and nothing in it failed."""

from __future__ import annotations

import json

from tests.clients.catalog import CLIENTS
from tests.clients.table import PAGE, RESULTS, page_table


def test_the_page_shows_the_results() -> None:
    assert page_table() in PAGE.read_text()


def test_every_client_was_tried_and_none_failed() -> None:
    results = json.loads(RESULTS.read_text())
    assert [result["client"] for result in results] == [client.name for client in CLIENTS]
    assert not [result["client"] for result in results if result["failed"]]
