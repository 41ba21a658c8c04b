"""The page's tab for embeddings, in a real Chromium: texts in, their similarities as a heat map and as a map."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.webui_page import Page, needs_chromium
from tests.server.webui_server import KEY, ScriptedEngine, build, running

pytestmark = needs_chromium

ANGLES = (0, 10, 90, 180)
TEXTS = [f"{angle} degrees <i>" for angle in ANGLES]
CELLS = "return [...document.querySelectorAll('#embed-heat tbody tr')].map((row) => [...row.querySelectorAll('td')]"


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def page(chromium: Any, engine: ScriptedEngine) -> Iterator[Page]:
    with running(build(engine)) as address:
        chromium.get(address)
        page = Page(chromium)
        page.complaints()
        page.wait(lambda: page.get("#model").text == "scripted", "the model's name")
        page.get("#view-embed").click()
        yield page
        page.forget()
        assert not page.complaints()


def embed(page: Page, texts: list[str]) -> None:
    page.run("document.getElementById('embed-texts').value = arguments[0]", "\n".join(texts))
    page.get("#embed-send").click()


def numbers(page: Page) -> list[list[float]]:
    return [[float(text) for text in row] for row in page.run(f"{CELLS}.map((cell) => cell.textContent))")]


def test_texts_become_a_heat_map_and_a_map(page: Page, engine: ScriptedEngine) -> None:
    assert not page.get("#prompt").is_displayed() and page.get("#blocks").is_displayed()
    embed(page, [*TEXTS, "", "  "])
    page.wait(lambda: page.get("#embed-heat").is_displayed(), "the table")
    assert engine.asked[-1] == {"model": "scripted", "input": TEXTS}
    expected = [[round(math.cos(math.radians(one - other)), 2) for other in ANGLES] for one in ANGLES]
    assert numbers(page) == expected
    shares = page.run(f"{CELLS}.map((cell) => Number(cell.style.getPropertyValue('--share'))))")
    assert shares[0][1] == 1 and shares[0][3] == 0 and 0 < shares[0][2] < 1  # of two texts the nearest, the farthest
    assert page.get("#embed-note").text.startswith("4 texts · 28 tokens · 3 dimensions · ")
    assert page.get("#embed-range").text == "-1.00 to 0.98"
    assert page.all("#embed-heat tbody th")[1].text == f"2 {TEXTS[1]}" and not page.all("#embed i")
    places = page.run(
        "const { places, similarities } = await import('/page/similarity.js');"
        "return places(similarities(arguments[0].map((angle) => [Math.cos(angle), Math.sin(angle)])));",
        [math.radians(angle) for angle in ANGLES],
    )
    apart = [[math.dist(one, other) for other in places] for one in places]
    assert apart[0][1] < 0.3 < apart[0][2] < apart[0][3]
    drawn = "const map = document.getElementById('embed-map'); return map.width > 100 && map.toDataURL()"
    before = page.run(drawn)
    page.point(page.all("#embed-heat tbody td")[3])
    assert before and page.run(drawn) != before  # the two texts of the cell stand out


def test_errors_are_shown_in_the_servers_words(page: Page) -> None:
    embed(page, ["refuse"])
    page.wait(lambda: page.get("#embed-error").is_displayed(), "the error")
    assert page.get("#embed-error").text == "this model cannot <b>embed</b>: it generates text"
    embed(page, [" "])
    page.wait(lambda: "each line" in page.get("#embed-error").text, "nothing to embed")
    embed(page, ["0 one"])
    page.wait(lambda: numbers(page) == [[1.0]], "one text alone")
    assert not page.get("#embed-error").is_displayed()


def test_on_a_phone(page: Page) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        embed(page, [f"{angle} degrees, a text that is longer than the screen is wide" for angle in range(0, 360, 15)])
        page.wait(lambda: len(numbers(page)) == 24, "many texts")
        assert not page.get("#engine").is_displayed() and page.get("#embed-map").is_displayed()
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        assert page.run(
            "const heat = document.querySelector('.heat-scroll'); return heat.scrollWidth > heat.clientWidth"
        )
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_server_that_wants_a_key_says_so(chromium: Any, engine: ScriptedEngine) -> None:
    with running(build(engine, key=KEY)) as address:
        chromium.get(address)
        page = Page(chromium)
        page.get("#view-embed").click()
        embed(page, ["0 one"])
        page.wait(lambda: "API key is required" in page.get("#embed-error").text, "the refusal")
        page.forget()
