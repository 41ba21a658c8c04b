"""/docs in a real Chromium: every path is there, and no other host is asked for anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.helpers import RunningApp
from tests.server.webui_page import Page, needs_chromium

pytestmark = needs_chromium


def test_the_api_is_drawn_from_its_description(serve: Callable[..., RunningApp], chromium: Any) -> None:
    app = serve()
    with app.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    chromium.get(app.url + "/docs")
    page = Page(chromium)
    page.complaints()
    page.wait(lambda: page.run("return document.body.dataset.ready"), "the page")
    shown = page.run("return [...document.querySelectorAll('.operation code')].map((node) => node.textContent)")
    assert sorted(shown) == sorted(path for path, operations in paths.items() for _ in operations)
    loaded = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded and all(name.startswith(app.url) for name in loaded) and not page.complaints()
    fields = "return document.querySelector('[open] .fields').textContent"
    page.run("document.querySelector('.operation:has(code)').open = true")
    assert page.run(fields)
    page.fill("#search", "count_tokens")
    found = "return [...document.querySelectorAll('.operation:not([hidden]) code')].map((node) => node.textContent)"
    assert page.run(found) == ["/v1/messages/count_tokens"]
