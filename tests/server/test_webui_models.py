"""The page's picker, where there are several models: which is asked, and where each is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.support.ui import Select

from tests.server.webui_page import Page, needs_chromium
from tests.server.webui_server import ScriptedEngine, build, running

pytestmark = needs_chromium


def card(name: str, state: str, **others: Any) -> dict[str, Any]:
    return {"id": name, "state": state, "max_model_len": 2048, "input_modalities": ["text"], **others}


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.cards = [card("small", "ready"), card("large", "unloaded", max_model_len=None)]
    return engine


@pytest.fixture
def page(chromium: Any, engine: ScriptedEngine) -> Iterator[Page]:
    with running(build(engine)) as url:
        chromium.get(url)
        page = Page(chromium)
        page.complaints()
        page.wait(lambda: options(page) == ["small", "large · not in memory"], "both models")
        yield page
        page.forget()
        assert not page.complaints()


def options(page: Page) -> list[str]:
    return [option.text for option in Select(page.get("#model")).options]


def test_the_chosen_model_is_asked_and_its_state_is_shown(page: Page, engine: ScriptedEngine) -> None:
    page.wait(lambda: page.get("#status").text == "Idle", "the engine of the first model")
    page.say("echo:one")
    page.wait(lambda: page.answer() == "one", "an answer")
    assert engine.asked[-1]["model"] == "small" and page.get("#context").text == "2,048 tokens of context"
    Select(page.get("#model")).select_by_value("large")
    page.wait(lambda: page.get("#status").text == "large: not in memory", "where it is")
    assert not page.get("#context").text
    page.say("echo:two")
    page.wait(lambda: page.answer() == "two", "an answer")
    assert engine.asked[-1]["model"] == "large"
    engine.cards = [card("small", "ready"), card("large", "loading")]
    page.wait(lambda: page.get("#status").text == "large: loading", "the load")
    engine.cards = [card("small", "unloaded"), card("large", "ready", loads={"count": 1})]
    page.wait(lambda: options(page) == ["small · not in memory", "large"], "both states")
    page.wait(lambda: page.get("#status").text == "Idle", "its engine")


def test_the_choice_outlives_the_page(page: Page) -> None:
    Select(page.get("#model")).select_by_value("large")
    page.driver.refresh()
    page.wait(lambda: page.get("#model").get_attribute("value") == "large", "the same model")
    page.wait(lambda: page.get("#status").text == "large: not in memory", "where it is")
