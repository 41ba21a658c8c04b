"""The picture of the page in README and docs/using/page.md, taken of a server that runs:

cadence serve smollm2 --num-gpu-blocks-override 200 --max-model-len 2048 --max-num-seqs 8
python -m tests.server.page_picture http://127.0.0.1:8000 docs/images/page.png
"""

from __future__ import annotations

import base64
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.server.webui_page import Page, open_chromium

SIZE = {"width": 1440, "height": 1056, "deviceScaleFactor": 1.5, "mobile": False}
OTHERS = ("Tell me a story about a fox.", "What is a prime number?", "List five rivers.", "Explain gravity.")
LIMIT_S = 300.0


def ask_beside(url: str, model: str) -> None:
    """Requests of others, so that the engine has something to show."""
    for seed, question in enumerate(OTHERS):
        messages = [{"role": "user", "content": question}]
        body = {"model": model, "messages": messages, "max_tokens": 400, "ignore_eos": True, "seed": seed}
        options: dict[str, Any] = {"json": body, "timeout": LIMIT_S}
        threading.Thread(target=httpx.post, args=(f"{url}/v1/chat/completions",), kwargs=options, daemon=True).start()
        time.sleep(0.4)


def wait(what: Callable[[], Any]) -> Any:
    ends = time.monotonic() + LIMIT_S
    while not (found := what()) and time.monotonic() < ends:
        time.sleep(0.2)
    return found


def finished(page: Page, count: int) -> bool:
    return len(page.all(".answer:not(.busy)")) == count


def talk(page: Page, url: str) -> None:
    wait(lambda: page.get("#status").text == "Idle")
    for name, value in (("temperature", 0.2), ("max_tokens", 260), ("seed", 3)):
        page.set(name, value)
    page.say("Write a Python function that reverses a string, with one example.")
    wait(lambda: finished(page, 1))
    page.get("#probabilities").click()
    page.set("temperature", 0.7)
    page.set("max_tokens", 110)
    ask_beside(url, page.get("#model").text)
    page.say("Why is the sky blue?")
    wait(lambda: finished(page, 2))
    left = [token for token in page.all(".token")[30:] if 150 < token.location["x"] < 300]
    page.point(max(left, key=lambda token: token.get_attribute("class")))
    wait(lambda: page.get("#tip").is_displayed())


def main(url: str, path: str) -> None:
    with tempfile.TemporaryDirectory() as profile, open_chromium(Path(profile)) as chromium:
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
        chromium.get(url)
        talk(Page(chromium), url)
        picture = chromium.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    Path(path).write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main(*sys.argv[1:3])
