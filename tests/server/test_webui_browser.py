"""The page in a real Chromium: typed into, pointed at, stopped."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from cadence.core.contract.engine_state import FREE, EngineState, EngineStats
from cadence.core.model.state_spec import StateStats
from tests.server.webui_page import Page, needs_chromium
from tests.server.webui_server import KEY, WORDS, ScriptedEngine, build, running

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def address(engine: ScriptedEngine) -> Iterator[str]:
    with running(build(engine)) as url:
        yield url


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Page]:
    chromium.get(address)
    page = Page(chromium)
    page.complaints()
    page.wait(lambda: page.get("#model").text == "scripted", "the model's name")
    yield page
    page.forget()
    assert not page.complaints()


def test_an_answer_streams_and_is_counted(page: Page, engine: ScriptedEngine) -> None:
    page.set("max_tokens", 200)  # long enough to be looked at several times
    page.say("Why is the sky blue?")
    first = page.wait(page.answer, "the first token")
    page.wait(lambda: len(page.answer()) > len(first), "more text")
    assert page.get("#stop").is_displayed() and not page.get("#send").is_displayed()
    page.wait_done()
    assert page.answer().startswith("The sky is blue because air scatters short waves.\nThe sky")
    meta = page.get(".answer .meta").text
    assert meta.startswith("200 tokens · ") and "first token after" in meta and "reached the token limit" in meta
    assert page.get("#send").is_displayed() and page.get("#prompt").get_attribute("value") == ""
    assert engine.asked[-1]["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]


def test_an_answer_without_a_limit_ends_after_1024_tokens(page: Page, engine: ScriptedEngine) -> None:
    aborted = engine.aborted
    page.say("Without end")
    page.wait_done()
    meta = page.get(".answer .meta").text
    assert meta.startswith("1024 tokens · ") and "reached the token limit" in meta
    assert "max_tokens" not in engine.asked[-1]
    page.wait(lambda: engine.aborted == aborted + 1, "the server sees the disconnect")


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop_aborts_the_request_and_keeps_the_text(page: Page, engine: ScriptedEngine, way: str) -> None:
    page.wait(lambda: not engine.open, "streams of pages that have gone are over")
    aborted = engine.aborted
    page.get("#probabilities").click()  # tokens are the text as it is
    page.set("max_tokens", 100000)
    page.say("Go on for ever")
    page.wait(lambda: len(page.answer()) > 20, "some text")
    if way == "button":
        page.get("#stop").click()
    else:
        page.get("body").send_keys(Keys.ESCAPE)
    page.wait_done()
    text = page.answer()
    assert len(text) > 20 and "stopped" in page.get(".answer .meta").text
    page.wait(lambda: engine.aborted == aborted + 1, "the server sees the disconnect")
    page.say("echo:and then?")
    page.wait(lambda: page.answer() == "and then?", "the next answer")
    assert engine.asked[-1]["messages"][1] == {"role": "assistant", "content": text}


def test_a_token_shows_its_probability_on_hover(page: Page) -> None:
    page.get("#probabilities").click()
    page.set("max_tokens", 8)
    page.say("Hello")
    page.wait_done()
    tokens = page.all(".answer .token")
    assert [token.get_property("textContent") for token in tokens] == WORDS[:8]
    classes = [token.get_attribute("class") for token in tokens]  # of 5, 68, 41, 14, 77, 50, 23 and 86 per cent
    assert [int(name.removeprefix("token p")) for name in classes] == [4, 2, 3, 4, 1, 2, 3, 1]
    page.point(tokens[1])
    tip = page.wait(lambda: page.get("#tip").is_displayed() and page.get("#tip"), "the card")
    assert "␣sky" in tip.text and "68.0 %" in tip.text and "␣<b>perhaps</b>" in tip.text and "16.0 %" in tip.text
    page.point(page.get("#chat-title"))
    page.wait(lambda: not page.get("#tip").is_displayed(), "the card goes")


def test_tokens_can_be_walked_with_the_keyboard(page: Page) -> None:
    page.get("#probabilities").click()
    page.set("max_tokens", 4)
    page.say("Hello")
    page.wait_done()
    body = page.get(".answer .body")
    page.run("arguments[0].focus()", body)
    body.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.get(".token.pointed").get_property("textContent") == " sky" and page.get("#tip").is_displayed()


def test_the_block_map_follows_the_requests(page: Page, engine: ScriptedEngine) -> None:
    page.wait(lambda: page.get("#status").text == "Idle", "the engine's state")
    idle = page.drawn()
    page.set("max_tokens", 100000)
    page.say("Fill the cache")
    row = page.wait(lambda: page.all("#requests tr"), "a row for the request")[0]
    page.wait(lambda: "mine" in row.get_attribute("class"), "the row is marked as this page's")
    assert page.get("#tile-running").text == "1" and page.get("#status").text == "Working"
    busy = page.wait(lambda: page.drawn() != idle and page.drawn(), "the map changes")
    page.wait(lambda: page.drawn() != busy, "the map changes again as the request grows")
    lit = page.drawn()
    page.point(row)
    page.wait(lambda: page.drawn() != lit, "its blocks stand out")
    page.get("#stop").click()
    page.wait(lambda: not page.all("#requests tr"), "the row goes")
    assert page.get("#tile-preemptions").text == "3" and page.get("#tile-prefix").text == "25 %"
    assert "held, 40 cached" in page.get("#engine-note").text


def test_a_block_says_who_holds_it(page: Page) -> None:
    page.wait(lambda: page.get("#status").text == "Idle", "the engine's state")
    canvas = page.get("#blocks")
    half = canvas.size["width"] / 2, canvas.size["height"] / 2
    ActionChains(page.driver).move_to_element_with_offset(canvas, int(4 - half[0]), int(4 - half[1])).perform()
    assert page.get("#block-note").text == "Block 0: cached, free to take"


def test_charts_are_drawn(page: Page) -> None:
    page.set("max_tokens", 60)
    page.say("Draw")
    page.wait_done()
    page.wait(lambda: page.get("#now-step").text.startswith("median"), "step times")
    page.wait(lambda: page.get("#now-first").text.endswith("ms"), "time to first token")
    ink = """
      const canvas = document.getElementById(arguments[0]);
      return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);"""
    assert all(page.run(ink, name) for name in ("chart-rate", "chart-first", "chart-step"))


def test_drafts_are_marked_and_counted(page: Page, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    page.wait(lambda: page.get("#status").text == "Idle", "the engine's state")
    assert not page.get("#drafts").is_displayed()
    monkeypatch.setattr(engine, "speculates", True)
    page.get("#probabilities").click()
    page.set("max_tokens", 8)
    page.say("Hello")
    page.wait_done()
    assert engine.asked[-1]["speculative"] == {"return_drafted": True}
    tokens = page.all(".answer .token")
    marked = ["drafted" in token.get_attribute("class").split() for token in tokens]
    assert marked == [True, True, True, False] * 2 and "6 drafted" in page.get(".answer .meta").text
    page.point(tokens[0])
    page.wait(lambda: "drafted, and kept" in page.get("#tip").text, "the card says so")
    page.wait(lambda: page.get("#now-drafts").text == "75 % of 8 drafts, last minute", "the share of all")
    assert page.get("#chart-drafts").get_attribute("aria-label").endswith(": 100 %, 100 %, 100 %, 0 %")


def test_states_are_counted_where_there_are_no_blocks(
    page: Page, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.wait(lambda: page.get("#status").text == "Idle", "the engine's state")
    assert not page.get("#states-note").is_displayed() and page.get("#block-map").is_displayed()

    async def without_attention() -> EngineState:
        states = StateStats(rows=8, running=2, slots=40, used=3, saved=5, restored=4, evicted=2)
        return EngineState(block_owners=[FREE], block_size=16, stats=EngineStats(states=states))

    monkeypatch.setattr(engine, "engine_state", without_attention)
    page.wait(lambda: page.get("#states-note").is_displayed(), "states")
    said = "States: 2 of 8 in use · 3 of 40 snapshots kept, 4 requests went on from one"
    assert page.get("#states-note").text == said
    assert not page.get("#block-map").is_displayed() and page.get("#tile-kv").text == "–"
    assert page.get("#engine-note").text == "no KV blocks: no layer has attention"


def test_controls_reach_the_request_and_empty_ones_do_not(page: Page, engine: ScriptedEngine) -> None:
    page.say("echo:plain")
    page.wait_done()
    assert engine.asked[-1].keys() == {"model", "messages", "stream", "stream_options"}
    page.get("#more summary").click()
    values = {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "max_tokens": "7", "seed": "11"}
    for name, value in values.items():
        page.fill(f"#{name}", value)
    page.fill("#system", "Be brief.")
    page.get("#close-settings").click()
    page.get("#probabilities").click()
    page.say("echo:again")
    page.wait(lambda: page.answer() == "again", "the answer")
    asked = engine.asked[-1]
    assert {name: asked[name] for name in values} == {name: json.loads(value) for name, value in values.items()}
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["logprobs"] is True and asked["top_logprobs"] == 5
    page.driver.refresh()
    assert page.get("#temperature").get_attribute("value") == "0.5"
    assert page.get("#set-note").text == "temperature 0.5, top p 0.9, top k 40, max tokens 7, seed 11, system prompt"


def test_regenerate_and_clear(page: Page, engine: ScriptedEngine) -> None:
    page.say("echo:once")
    page.wait_done()
    page.get(".answer .actions button").click()
    page.wait(lambda: len(engine.asked) > 1 and engine.asked[-1] == engine.asked[-2], "the same request again")
    page.wait_done()
    assert len(page.all(".answer")) == 1 and page.answer() == "once"
    page.get("#clear").click()
    assert not page.all(".message") and page.get("#empty").is_displayed()
    page.say("echo:afresh")
    page.wait_done()
    assert len(engine.asked[-1]["messages"]) == 1


def test_shift_enter_breaks_the_line(page: Page, engine: ScriptedEngine) -> None:
    page.get("#prompt").send_keys("echo:one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
    page.wait_done()
    assert engine.asked[-1]["messages"][0]["content"] == "echo:one\ntwo"


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "prose"])
def test_what_the_model_writes_is_never_markup(page: Page, tokens: bool) -> None:
    if tokens:
        page.get("#probabilities").click()
    attack = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script> **<b>bold</b>** `<i>`"
    token = {"token": attack, "logprob": -0.1, "bytes": list(attack.encode()), "top_logprobs": []}
    play = {"delta": {"content": attack}, **({"logprobs": {"content": [token]}} if tokens else {})}
    page.paste("tokens:" + json.dumps([play]))
    page.wait_done()
    assert not page.all(".answer img, .answer script, .answer b, .answer i")
    assert "<img src=x onerror" in page.answer() and page.driver.title == "Cadence"
    assert len(page.all(".answer strong")) == (0 if tokens else 1)
    assert "<img src=x onerror" in page.get(".question .body").text and not page.all(".question img")


def test_prose_shows_a_little_markdown(page: Page) -> None:
    page.run(
        "document.getElementById('prompt').value = arguments[0]",
        "echo:# Title\n\nOne *two*\n- a\n- b\n\n```py\nx < 1\n```",
    )
    page.get("#send").click()
    page.wait_done()
    assert page.get(".answer h4").text == "Title" and page.get(".answer em").text == "two"
    assert [item.text for item in page.all(".answer li")] == ["a", "b"] and page.get(".answer pre code").text == "x < 1"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("fail", "The engine lost <i>this</i> request."), ("cut", "The stream broke off before its end.")],
)
def test_a_stream_that_breaks_keeps_its_text_and_says_why(page: Page, prompt: str, message: str) -> None:
    page.say(prompt)
    page.wait_done()
    assert page.get(".answer .error").text == message
    assert page.answer() == "The sky is blue because"


def test_a_refusal_is_shown_in_the_servers_words(page: Page, engine: ScriptedEngine) -> None:
    page.set("temperature", 9)
    page.say("Too hot")
    page.wait_done()
    assert page.get(".answer .error").text == "temperature must be at most 2, got <b>9</b>."
    page.set("temperature", 0.73)
    page.say("echo:next")
    page.wait(lambda: page.answer() == "next", "the next answer")
    assert [message["content"] for message in engine.asked[-1]["messages"]] == ["echo:next"], (
        "the failed turn is left out"
    )


def test_characters_of_several_tokens_become_one(page: Page) -> None:
    """A smile of four bytes in two tokens, a held-back character, and an end token that is not in the text."""
    page.get("#probabilities").click()
    smile = list("🙂".encode())
    tokens = [("Hi", list(b"Hi")), ("a", smile[:2]), ("b", smile[2:]), ("<end>", list(b"<end>"))]
    texts = ["Hi", "", "🙂", ""]
    play = [
        {
            "delta": {"content": text},
            "logprobs": {"content": [{"token": name, "logprob": -0.1, "bytes": raw, "top_logprobs": []}]},
        }
        for text, (name, raw) in zip(texts, tokens)
    ]
    page.paste("tokens:" + json.dumps(play))
    page.wait_done()
    assert page.answer() == "Hi🙂"
    assert page.run(
        "return [...document.querySelectorAll('.answer .token')].map((s) => [s.textContent, s.tokens.length])"
    ) == [["Hi", 1], ["🙂", 2]]


def test_reasoning_stands_apart(page: Page, engine: ScriptedEngine) -> None:
    play = [{"delta": {"reasoning": "Let me see."}}, {"delta": {"content": "Done."}}]
    page.paste("tokens:" + json.dumps(play))
    page.wait_done()
    assert page.run("return document.querySelector('.reasoning .body').textContent") == "Let me see."
    page.say("echo:next")
    page.wait(lambda: page.answer() == "next", "the next answer")
    assert engine.asked[-1]["messages"][1]["content"] == "Done."


def test_events_are_read_whatever_the_cuts(page: Page) -> None:
    script = """
      const [text, size, done] = arguments;
      import("./page/sse.js").then(async ({ events }) => {
        const bytes = new TextEncoder().encode(text), found = [];
        const stream = new ReadableStream({ start(control) {
          for (let at = 0; at < bytes.length; at += size) control.enqueue(bytes.slice(at, at + size));
          control.close();
        } });
        for await (const data of events(stream)) found.push(data);
        done(found);
      });"""
    text = ": note\r\ndata: één\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata: [DONE]\n\ndata: cut"
    for size in (1, 2, 3, 7, 1000):
        assert page.driver.execute_async_script(script, text, size) == ["één", "two\nlines", "[DONE]"]


def test_numbers_read_well(page: Page) -> None:
    script = """
      const [values, done] = arguments;
      import("./page/format.js").then(({ seconds, plain }) => done([values.map(seconds), values.map(plain)]));"""
    values = [0, 0.0000421, 0.00402, 0.25, 0.5, 0.9999, 2.5, 10.4, 100]
    spans, numbers = page.driver.execute_async_script(script, values)
    assert spans == ["0", "42 µs", "4.02 ms", "250 ms", "500 ms", "1 s", "2.5 s", "10 s", "100 s"]
    assert numbers == ["0", "0.0", "0.0", "0.3", "0.5", "1.0", "2.5", "10", "100"]


def test_nobody_is_asked_while_nobody_looks(page: Page, engine: ScriptedEngine) -> None:
    hide = """
      Object.defineProperty(document, "visibilityState", { value: arguments[0], configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));"""
    page.run(hide, "hidden")
    page.wait(lambda: not asked_within(engine, seconds=1.5), "it asks no more")
    polls, began = engine.polls, time.monotonic()
    page.run(hide, "visible")
    page.wait(lambda: engine.polls >= polls + 3, "it asks again")
    assert engine.polls - polls <= 3 + (time.monotonic() - began) / 0.4, "by one timer, not by two"


def asked_within(engine: ScriptedEngine, seconds: float) -> bool:
    polls = engine.polls
    time.sleep(seconds)
    return engine.polls > polls


def test_a_key_is_asked_for_and_kept_for_the_tab(chromium: Any) -> None:
    with running(build(ScriptedEngine(), key=KEY)) as url:
        chromium.get(url)
        page = Page(chromium)
        page.wait(lambda: page.get("#key-note").is_displayed(), "the key is asked for")
        page.wait(lambda: page.get("#status").text == "Needs an API key", "the status")
        page.say("echo:no")
        page.wait_done()
        assert page.get(".answer .error").text == "An API key is required: Authorization: Bearer KEY."
        page.get("#enter-key").click()
        page.get("#key").send_keys(KEY, Keys.ENTER)
        page.wait(lambda: page.get("#model").text == "scripted", "the model's name")
        page.wait(lambda: not page.get("#key-note").is_displayed(), "nothing is asked for any more")
        page.get(".answer .actions button").click()
        page.wait(lambda: page.answer() == "no", "the answer")
        chromium.refresh()
        page.wait(lambda: page.get("#model").text == "scripted", "the key is remembered")
        assert KEY not in chromium.execute_script("return JSON.stringify(localStorage)")
        page.forget()


def test_an_unreachable_server_is_said_so(chromium: Any) -> None:
    with running(build(ScriptedEngine())) as url:
        chromium.get(url)
        page = Page(chromium)
        page.wait(lambda: page.get("#status").text == "Idle", "the state")
    page.say("Anyone there?")
    page.wait_done()
    assert page.get(".answer .error").text == "The server cannot be reached."
    page.wait(lambda: page.get("#status").text == "The server cannot be reached.", "the status")
    page.wait(lambda: page.style(".tiles", "filter") == "grayscale(1)", "the tiles are greyed")
    page.wait(lambda: page.style("#engine figure.card", "filter") == "grayscale(1)", "the map is greyed")
    assert float(page.style(".tiles", "opacity")) < 0.6
    assert "these figures are old" in page.get("#stale-note").text


NOTE = "The server wants a key that this tab does not have. " * 12


# What names something in a view: (its text, left, top, right, bottom), from top to bottom.
HEADINGS = """
  const named = "h2, h3, dt, .soft, .switch, #clear, #empty, .embed-form label, .speech-options label";
  const shown = document.querySelectorAll(`#${arguments[0]} :is(${named})`);
  return [...shown].map((each) => [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.height)
    .map(([text, box]) => [text, box.left, box.top, box.right, box.bottom]).sort((one, other) => one[2] - other[2]);"""


def check_headings(page: Page, view: str, width: int) -> None:
    """All of them stand below the tabs, within the window's width, and none lies over another or over the figures."""
    page.get(f"#view-{view}").click()
    page.run("document.getElementById('engine').scrollTop = 0")
    boxes = page.run(HEADINGS, view)
    assert boxes, view
    tabs, bar = page.box(".views"), page.box(".bar")
    assert bar[1] <= tabs[1] < tabs[3] <= bar[3]
    for text, left, top, right, _ in boxes:
        assert top >= bar[3] - 0.5, f"{text!r} begins at {top}, above {bar[3]}"
        assert left >= -0.5 and right <= width + 0.5, f"{text!r} lies outside the window"
    for (one, left, _, right, bottom), (other, start, top, end, _) in itertools.pairwise(boxes):
        assert top >= bottom - 0.5 or start >= right - 0.5 or end <= left + 0.5, f"{other!r} lies over {one!r}"
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", [(360, 740), (390, 844), (390, 460), (844, 390), (320, 568)])
def test_on_phones_nothing_lies_outside_its_place(page: Page, size: tuple[int, int]) -> None:
    """Headings stand below the tabs, and a long note leaves room for the composer."""
    page.wait(lambda: page.get("#status").text == "Idle", "the engine's state")
    device = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    try:
        page.run(
            "document.getElementById('key-words').textContent = arguments[0];"
            "document.getElementById('key-note').hidden = false",
            NOTE,
        )
        bar, write = page.box(".bar"), page.box(".write")
        assert write[1] >= bar[3] and write[3] <= size[1] + 1, (bar, write)
        check_headings(page, "chat", size[0])
        check_headings(page, "embed", size[0])
        check_headings(page, "speech", size[0])
        check_headings(page, "engine", size[0])
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_narrow_screens_show_one_view_at_a_time(page: Page) -> None:
    page.driver.set_window_size(500, 800)
    try:
        assert page.get("#prompt").is_displayed() and not page.get("#blocks").is_displayed()
        page.get("#view-engine").click()
        assert page.get("#blocks").is_displayed() and not page.get("#prompt").is_displayed()
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        page.wait(
            lambda: page.run("return document.getElementById('blocks').width > 100"), "the map is drawn to its size"
        )
    finally:
        page.driver.set_window_size(1440, 900)
