"""The chat of the page in a real Chromium: what it keeps, what it copies, where the focus is, how small it may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from selenium.webdriver.common.keys import Keys

from tests.server.helpers import ROOT, RunningApp
from tests.server.webui_page import Page, needs_chromium
from tests.server.webui_server import KEY, ScriptedEngine, build, running

pytestmark = needs_chromium

STYLES = re.findall('rel="stylesheet"', (ROOT / "cadence/entrypoints/webui/static/index.html").read_text("utf-8"))
CODE = "echo:Run this:\n\n```sh\nls -l <dir>\n```\n"


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def address(engine: ScriptedEngine) -> Iterator[str]:
    with running(build(engine)) as url:
        yield url


def visit(chromium: Any, address: str) -> Page:
    chromium.get(address)
    page = Page(chromium)
    page.wait(lambda: page.run("return document.getElementById('model').value") == "scripted", "the model's name")
    return page


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Page]:
    page = visit(chromium, address)
    page.complaints()
    yield page
    page.forget()
    assert not page.complaints()


@contextmanager
def screen(page: Page, width: int, height: int, theme: str = "light", touch: bool = False) -> Iterator[None]:
    command = page.driver.execute_cdp_cmd
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
    command("Emulation.setDeviceMetricsOverride", size)
    command("Emulation.setTouchEmulationEnabled", {"enabled": touch})
    command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    try:
        yield
    finally:
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setTouchEmulationEnabled", {"enabled": False})
        command("Emulation.setEmulatedMedia", {"features": []})


class TestReload:
    def test_the_conversation_comes_back(self, page: Page, engine: ScriptedEngine) -> None:
        page.paste(CODE)
        page.wait_done()
        page.get("#prompt").send_keys("half a thought")
        page.driver.refresh()
        page.wait(lambda: page.get("#model").text == "scripted", "the page is there")
        assert page.get(".question .body").text == CODE.strip()
        assert page.get(".answer pre code").text == "ls -l <dir>" and page.get(".answer .meta").text.startswith(
            "1 token"
        )
        assert page.get("#prompt").get_attribute("value") == "half a thought"
        page.fill("#prompt", "echo:next")
        page.get("#send").click()
        page.wait(lambda: page.answer() == "next", "the next answer")
        said = [message["content"] for message in engine.asked[-1]["messages"]]
        assert said == [CODE.strip(), CODE.removeprefix("echo:").strip(), "echo:next"]

    def test_an_answer_cut_short_by_it_says_so_and_can_be_had_again(self, page: Page, engine: ScriptedEngine) -> None:
        page.set("max_tokens", 100000)
        page.say("Go on for ever")
        page.wait(lambda: len(page.answer()) > 40, "some text")
        page.driver.refresh()
        page.wait(lambda: page.all(".answer"), "the conversation is back")
        assert "The sky is blue" in page.answer() and "interrupted" in page.get(".answer .meta").text
        page.set("max_tokens", 3)
        page.get(".answer .actions button").click()
        page.wait(lambda: page.answer() == "The sky is", "the answer again")

    def test_clear_forgets_it_for_good(self, page: Page) -> None:
        page.say("echo:secret")
        page.wait_done()
        assert "secret" in page.run("return JSON.stringify(localStorage)")
        page.get("#clear").click()
        assert "secret" not in page.run("return JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
        page.driver.refresh()
        assert not page.all(".message") and page.get("#empty").is_displayed()

    @pytest.mark.parametrize("kept", ["{", "null", '[1, {"question": 2}, {"question": "a", "answer": {"text": "b"}}]'])
    def test_a_spoilt_store_is_an_empty_one(self, page: Page, kept: str) -> None:
        name = page.run("return 'cadence.conversation.' + location.pathname")
        page.run("localStorage.setItem(arguments[0], arguments[1])", name, kept)
        page.driver.refresh()
        page.wait(lambda: page.get("#model").text == "scripted", "the page works")
        assert not page.all(".message")

    def test_what_is_kept_is_bounded(self, page: Page) -> None:
        script = """
          const [size, count, done] = arguments;
          import("./page/keep.js").then(({ keep, kept }) => {
            const answer = { name: "m", text: "x".repeat(size), reasoning: "", meta: "", error: "", over: true };
            keep(Array.from({ length: count }, (_, at) => ({ question: String(at), answer })));
            const name = "cadence.conversation." + location.pathname;
            done([kept().length, kept().at(-1)?.question ?? "", localStorage.getItem(name).length]);
          });"""
        run = page.driver.execute_async_script
        assert run(script, 10, 250)[:2] == [100, "249"]
        count, last, size = run(script, 90_000, 50)
        assert 5 < count < 20 and last == "49" and size <= 1_000_000
        assert run(script, 2_000_000, 1)[0] == 0


class TestCopy:
    def copied(self, page: Page, button: str) -> str:
        page.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
        page.run("arguments[0].click()", page.get(button))
        page.wait(lambda: page.get(button).get_property("textContent") == "Copied", "the button says so")
        return str(page.run("return window.copied"))

    def test_messages_and_code(self, page: Page) -> None:
        page.paste(CODE)
        page.wait_done()
        assert self.copied(page, ".code .copy") == "ls -l <dir>"
        assert self.copied(page, ".answer footer .copy") == CODE.removeprefix("echo:").strip()
        assert self.copied(page, ".question .copy") == CODE.strip()

    def test_without_the_clipboards_interface(self, page: Page) -> None:
        page.say("echo:plain")
        page.wait_done()
        page.run(
            "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });"
            "document.execCommand = () => { window.copied = document.activeElement.value; return true; };"
        )
        page.run("document.getElementById('prompt').focus(); arguments[0].click()", page.get(".answer footer .copy"))
        page.wait(lambda: page.get(".answer footer .copy").text == "Copied", "the button says so")
        assert page.run("return window.copied") == "plain" and not page.all("body > textarea")


class TestKey:
    def test_a_wrong_key_does_not_take_the_focus(self, chromium: Any) -> None:
        with running(build(ScriptedEngine(), key=KEY)) as url:
            chromium.get(url)
            page = Page(chromium)
            page.wait(lambda: page.get("#key-note").is_displayed(), "the key is asked for")
            assert page.run("return document.activeElement.id") == "prompt" and not page.get("#key").is_displayed()
            page.get("#enter-key").click()
            page.get("#key").send_keys("wrong", Keys.ENTER)
            page.wait(lambda: page.get("#enter-key").text == "Change the key", "the key is refused")
            for letter in "echo:typed while the server refuses":
                page.driver.switch_to.active_element.send_keys(letter)
            page.driver.switch_to.active_element.send_keys(Keys.ENTER)
            page.wait(lambda: page.all(".answer .error:not([hidden])"), "the refusal")
            assert page.get(".question .body").text == "echo:typed while the server refuses"
            assert page.run("return document.activeElement.id") == "prompt"
            assert page.get("#key").get_attribute("value") == "wrong"
            page.forget()


class TestSmallScreens:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    @pytest.mark.parametrize(("width", "height", "least"), [(844, 390, 0.6), (390, 844, 0.6), (667, 375, 0.55)])
    def test_messages_keep_their_height(self, page: Page, width: int, height: int, least: float, theme: str) -> None:
        with screen(page, width, height, theme, touch=True):
            page.say("echo:hello")
            page.wait_done()
            messages = page.run("return document.getElementById('messages').clientHeight")
            assert messages > least * height
            page.run("document.querySelector('#more summary').click()")
            assert page.get("#temperature").is_displayed()
            assert page.run("return document.getElementById('messages').clientHeight") == messages
            _, top, _, bottom = page.box(".sheet")
            assert 0 <= top < bottom <= height
            page.get("body").send_keys(Keys.ESCAPE)
            assert not page.get("#temperature").is_displayed()
            assert page.run("return document.documentElement.scrollWidth <= innerWidth")

    def test_fingers_can_hit_what_they_aim_at(self, page: Page) -> None:
        with screen(page, 390, 844, touch=True):
            page.say("echo:hello")
            page.wait_done()
            small = page.run("""
              return [...document.querySelectorAll("button, summary, select:enabled, a")]
                .filter((one) => one.offsetParent).map((one) => [one.textContent, one.getBoundingClientRect().height])
                .filter(([, height]) => height < 36);""")
            assert not small

    def test_a_phone_on_its_side_shows_every_control(self, page: Page) -> None:
        with screen(page, 844, 390, touch=True):
            for control in ("#prompt", "#send", "#clear", "#probabilities", "#more summary", "#view-engine", "#status"):
                left, top, right, bottom = page.box(control)
                assert page.get(control).is_displayed() and 0 <= left < right <= 844 and 0 <= top < bottom <= 390


CONTRAST = """
  const shade = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.createElement("i");
  document.body.append(probe);
  const value = (name) => { probe.style.color = `var(${name})`; return shade(getComputedStyle(probe).color); };
  const ratio = ([front, back]) => {
    const [high, low] = [value(front), value(back)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const ratios = arguments[0].map(ratio);
  probe.remove();
  return ratios;"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Page, theme: str) -> None:
    pairs = [(front, back) for front in ("--ink", "--soft", "--accent") for back in ("--paper", "--card")]
    pairs += [("--ink", "--question"), ("--soft", "--code"), ("--on-accent", "--accent"), ("--on-accent", "--bad")]
    with screen(page, 1440, 900, theme):
        assert all(ratio >= 4.5 for ratio in page.run(CONTRAST, pairs)), list(zip(pairs, page.run(CONTRAST, pairs)))


def test_a_page_behind_a_prefix(chromium: Any) -> None:
    outer, engine = FastAPI(), ScriptedEngine()
    outer.mount("/some/where", build(engine))
    with running(outer) as url:
        page = visit(chromium, url + "/some/where/")
        page.say("echo:here")
        page.wait(lambda: page.answer() == "here", "the answer")
        page.wait(lambda: page.get("#status").text == "Idle", "the engine's state")
        assert page.get("#docs").get_attribute("href") == url + "/some/where/docs"
        page.forget()


class TestRealServer:
    def test_a_key_in_the_address(self, chromium: Any, serve: Callable[..., RunningApp]) -> None:
        app = serve({"script": "Come in."}, api_key=["sesame"])
        chromium.get(app.url.replace("//", "//visitor:sesame@"))
        page = Page(chromium)
        page.wait(lambda: page.get("#model").text == "fake", "the model's name")
        rules = page.run("return [...document.styleSheets].map((sheet) => sheet.cssRules.length)")
        assert len(rules) == len(STYLES) and min(rules) > 3 and page.style("body", "display") == "grid"
        assert page.run("return document.querySelector('h1 img').naturalWidth") > 0
        page.say("Hello")
        page.wait(lambda: page.answer() == "Come in.", "the answer")
        page.forget()

    def test_only_the_pages_files_are_open(self, serve: Callable[..., RunningApp]) -> None:
        app = serve(api_key=["sesame"])
        with app.client() as client:
            assert client.get("/page/style.css").status_code == 200
            for path in ("/", "/docs", "/openapi.json", "/engine/state", "/v1/models", "/page"):
                assert client.get(path).status_code == 401, path

    @pytest.mark.parametrize("documented", [True, False])
    def test_a_link_to_the_docs_where_there_are_some(
        self, chromium: Any, serve: Callable[..., RunningApp], documented: bool
    ) -> None:
        app = serve(disable_fastapi_docs=not documented)
        chromium.get(app.url)
        page = Page(chromium)
        page.wait(lambda: page.get("#model").text == "fake", "the model's name")
        if documented:
            page.wait(lambda: page.get("#docs").is_displayed(), "the link")
            page.get("#docs").click()
            page.wait(lambda: page.run("return document.body.dataset.ready") == "yes", "the docs")
        else:
            assert not page.get("#docs").is_displayed()
