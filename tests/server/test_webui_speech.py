"""The page's tab for speech, in a real Chromium with a microphone that beeps, over the real server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence.audio.limits import AudioLimits
from cadence.entrypoints.server import make_state
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.service import Speech
from tests.server.fakes_speech import WORDS, TellsTimes, sound
from tests.server.test_completions import Serve
from tests.server.webui_page import Page, needs_chromium

pytestmark = needs_chromium

LINES = [("0:00", WORDS[0][2].strip()), ("0:01", WORDS[1][2].strip())]


@pytest.fixture
def teller(monkeypatch: pytest.MonkeyPatch) -> TellsTimes:
    teller = TellsTimes()
    monkeypatch.setattr(make_state, "open_speech", lambda *_: Speech(teller, Recordings(AudioLimits())))
    return teller


@pytest.fixture
def page(chromium: Any, teller: TellsTimes, serve: Serve) -> Iterator[Page]:
    chromium.get(serve().url)
    page = Page(chromium)
    page.complaints()
    page.wait(lambda: page.get("#model").text == "fake", "the model's name")
    page.get("#view-speech").click()
    yield page
    page.forget()
    assert not page.complaints()


def lines(page: Page) -> list[tuple[str, str]]:
    script = "return [...document.querySelectorAll('#speech-words p')]"
    rows = page.run(f"{script}.map((p) => [...p.children].map((part) => part.textContent))")
    return [tuple(row) for row in rows]


def wait_done(page: Page) -> None:
    page.wait(lambda: "of sound" in page.get("#speech-note").text, "the transcript's end")


def test_the_microphone_is_recorded_and_its_words_are_shown(page: Page, teller: TellsTimes) -> None:
    page.get("#speech-language").send_keys("en")
    page.get("#speech-record").click()
    page.wait(lambda: page.get("#speech-note").text == "Recording 0:01", "a second of sound")
    page.get("#speech-end").click()
    wait_done(page)
    assert lines(page) == LINES
    ((seconds, params, _),) = teller.asked
    assert seconds > 0.5 and params.language == "en" and params.partial_text
    assert page.get("#speech-record").is_displayed() and not page.get("#speech-end").is_displayed()
    assert page.get("#speech-partial").text == ""


def test_a_file_is_chosen_and_translated(page: Page, teller: TellsTimes, tmp_path: Path) -> None:
    path = tmp_path / "talk <b>.wav"
    path.write_bytes(sound(2.0))
    page.get("#speech-translate").click()
    page.get("#speech-file").send_keys(str(path))
    wait_done(page)
    assert lines(page) == LINES and page.get("#speech-name").text == "talk <b>.wav"
    assert page.get("#speech-note").text.startswith("0:02 of sound · en · ")
    assert teller.asked[0][1].task == "translate"


def test_a_file_is_dropped(page: Page, teller: TellsTimes) -> None:
    script = """
        const bytes = Uint8Array.from(atob(arguments[0]), (char) => char.charCodeAt(0));
        const dropped = new DataTransfer();
        dropped.items.add(new File([bytes], "dropped.wav"));
        const event = new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true });
        document.getElementById("speech").dispatchEvent(event);"""
    page.run(script, base64.b64encode(sound()).decode())
    wait_done(page)
    assert lines(page) == LINES and len(teller.asked) == 1


def test_what_is_wrong_with_a_file_is_shown(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("no sound at all, and long enough to be looked at")
    page.get("#speech-file").send_keys(str(path))
    page.wait(lambda: page.get("#speech-error").is_displayed(), "the error")
    assert "format" in page.get("#speech-error").text
    assert not page.get("#speech-card").is_displayed()


def test_on_a_phone(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(sound())
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.get("#speech-file").send_keys(str(path))
        wait_done(page)
        assert page.get("#speech-words").is_displayed() and not page.get("#engine").is_displayed()
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
