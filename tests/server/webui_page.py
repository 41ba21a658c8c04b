"""Chromium, and the page as a visitor uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1440,900",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",  # a microphone that beeps, and may be used
)  # fmt: skip
PATIENCE = 240.0  # seconds

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()), reason="needs chromium and chromedriver in /usr/bin (make browser)"
)


@contextmanager
def open_chromium(profile: Path) -> Iterator[Any]:
    """A browser of its own; `profile` is an empty folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(PATIENCE)
    driver.set_page_load_timeout(PATIENCE)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page as a visitor uses it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def get(self, css: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def fill(self, css: str, text: str) -> None:
        self.get(css).clear()
        self.get(css).send_keys(text)

    def set(self, name: str, value: float) -> None:
        """A setting, without opening the sheet it is in."""
        script = "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        self.run(script + "field.dispatchEvent(new Event('input'));", name, str(value))

    def style(self, css: str, name: str) -> str:
        return str(self.run("return getComputedStyle(arguments[0])[arguments[1]]", self.get(css), name))

    def box(self, css: str) -> list[float]:
        """Left, top, right and bottom, in pixels of the window."""
        script = "const box = arguments[0].getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom];"
        found: list[float] = self.run(script, self.get(css))
        return found

    def forget(self) -> None:
        """The conversation, the settings and the key."""
        self.run("document.getElementById('clear').click(); sessionStorage.clear(); localStorage.clear();")

    def say(self, text: str) -> None:
        self.get("#prompt").send_keys(text, Keys.ENTER)

    def paste(self, text: str) -> None:
        """Like `say`, for texts of several lines."""
        self.run("document.getElementById('prompt').value = arguments[0]", text)
        self.get("#send").click()

    def point(self, target: Any) -> None:
        ActionChains(self.driver).move_to_element(target).perform()

    def answer(self) -> str:
        """The last answer's text as the document has it."""
        return str(self.run("return [...document.querySelectorAll('.answer .body')].at(-1)?.textContent ?? ''"))

    def wait(self, what: Callable[[], Any], why: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := what():
                return found
            time.sleep(0.03)
        raise AssertionError(f"waited {PATIENCE} s: {why}")

    def wait_done(self) -> None:
        self.wait(lambda: self.all(".answer") and not self.all(".answer.busy"), "the answer ends")

    def complaints(self) -> list[str]:
        """What broke the page's own rules since it was last asked."""
        lines = [line["message"] for line in self.driver.get_log("browser")]
        return [line for line in lines if "Content Security Policy" in line or "Uncaught" in line]

    def drawn(self) -> str:
        """The map of blocks as it looks now."""
        return str(self.run("return document.getElementById('blocks').toDataURL()"))
