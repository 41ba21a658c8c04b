"""Pictures on the page, in a real Chromium: chosen, dropped and pasted, shown, sent, taken back, kept."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.server.webui_page import Page, needs_chromium
from tests.server.webui_server import ScriptedEngine, build, running

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.modalities = ["text", "image"]
    return engine


@pytest.fixture(scope="module")
def address(engine: ScriptedEngine) -> Iterator[str]:
    with running(build(engine)) as url:
        yield url


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Page]:
    chromium.get(address)
    page = Page(chromium)
    page.complaints()
    page.wait(lambda: page.get("#picture").is_displayed(), "the model sees")
    yield page
    page.forget()
    assert not page.complaints()


def picture(path: Path, size: tuple[int, int], colour: str) -> Path:
    Image.new("RGB", size, colour).save(path)
    return path


def sent(engine: ScriptedEngine) -> list[Any]:
    """The last message: a picture as its size and first pixel, a text as it is."""
    found: list[Any] = []
    for part in engine.asked[-1]["messages"][-1]["content"]:
        if part["type"] == "text":
            found.append(part["text"])
            continue
        head, _, data = part["image_url"]["url"].partition(",")
        with Image.open(BytesIO(base64.b64decode(data))) as image:
            found.append((head, image.size, image.convert("RGB").getpixel((0, 0))))
    return found


def test_a_file_is_chosen_shown_sent_and_kept(page: Page, engine: ScriptedEngine, tmp_path: Path) -> None:
    red, blue = picture(tmp_path / "red.png", (30, 20), "red"), picture(tmp_path / "blue.png", (8, 8), "blue")
    page.get("#picture-file").send_keys(f"{red}\n{blue}")
    page.wait(lambda: len(page.all("#pictures img")) == 2, "both are shown")
    page.get("[aria-label='Remove blue.png']").click()
    assert [each.get_attribute("alt") for each in page.all("#pictures img")] == ["red.png"]
    page.say("echo:What is this?")
    page.wait_done()
    assert sent(engine) == [("data:image/png;base64", (30, 20), (255, 0, 0)), "echo:What is this?"]
    assert not page.get("#pictures").is_displayed() and len(page.all(".question .seen img")) == 1
    page.driver.refresh()
    page.wait(lambda: page.all(".question .seen img"), "a reload brings it back")
    page.say("echo:And now?")
    page.wait(lambda: len(page.all(".answer")) == 2, "a second answer")
    page.wait_done()
    earlier = engine.asked[-1]["messages"][0]["content"]
    assert [part["type"] for part in earlier] == ["image_url", "text"], "the model sees it again"
    assert engine.asked[-1]["messages"][-1]["content"] == "echo:And now?"


def test_a_large_picture_is_dropped_and_made_smaller(page: Page, engine: ScriptedEngine) -> None:
    page.run("""
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [4000, 3000];
        canvas.getContext("2d").fillRect(0, 0, 4000, 3000);
        canvas.toBlob((blob) => {
          const files = new DataTransfer();
          files.items.add(new File([blob], "large.jpg", { type: "image/jpeg" }));
          const event = new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true });
          document.getElementById("messages").dispatchEvent(event);
        }, "image/jpeg");
    """)
    page.wait(lambda: page.all("#pictures img"), "it is shown")
    page.get("#send").click()
    page.wait_done()
    ((head, size, pixel),) = sent(engine)
    assert head == "data:image/jpeg;base64" and size == (1414, 1061) and max(pixel) < 3


def test_what_is_no_picture_is_said(page: Page, tmp_path: Path) -> None:
    words = tmp_path / "words.png"
    words.write_text("not a picture")
    page.get("#picture-file").send_keys(str(words))
    page.wait(lambda: "words.png is no picture" in page.get("#pictures").text, "a note")
    assert not page.all("#pictures img")


def test_a_model_that_reads_offers_none(chromium: Any) -> None:
    with running(build(ScriptedEngine())) as url:
        chromium.get(url)
        page = Page(chromium)
        page.wait(lambda: page.run("return document.getElementById('model').value") == "scripted", "the model's name")
        assert not page.get("#picture").is_displayed()
