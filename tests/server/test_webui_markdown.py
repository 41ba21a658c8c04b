"""Markdown on the page: what it becomes, that hostile text stays text, and that a long answer stays cheap to draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.webui_page import Page, needs_chromium
from tests.server.webui_server import ScriptedEngine, build, running

pytestmark = needs_chromium

RENDER = """
  const [text, done] = arguments;
  import("./page/markdown.js").then(({ render }) => {
    const node = document.createElement("div");
    node.append(...render(text));
    node.querySelectorAll(".code-head").forEach((head) => head.remove());
    done(node.innerHTML);
  });"""

# Draws the text cut at every `step` characters; the page must end as if it had come at once, and so must every prefix
# that is finished there.
STREAM = """
  const [text, step, done] = arguments;
  Promise.all([import("./page/reading.js"), import("./page/markdown.js")]).then(([{ ReadingView }, { render }]) => {
    const node = document.createElement("div"), whole = document.createElement("div");
    const view = new ReadingView(node);
    for (let at = 0; at < text.length; at += step) view.draw(text.slice(0, at + step));
    view.finish(text);
    whole.append(...render(text));
    done([node.innerHTML, whole.innerHTML]);
  });"""

# The time of each drawing while `pieces` come one after the other, and the text that stands there in the end.
COST = """
  const [opening, piece, before, count, done] = arguments;
  import("./page/reading.js").then(({ ReadingView }) => {
    const node = document.createElement("div"), times = [], fromNothing = [];
    const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
    document.body.append(node);
    const view = new ReadingView(node);
    let text = opening;
    for (let at = 0; at < before; at += 30) view.draw(text += piece.repeat(30));
    for (let at = 0; at < count; at += 1) {
      text += piece;
      const began = performance.now();
      view.draw(text);
      times.push(performance.now() - began);
    }
    const shown = node.textContent.length;
    for (let at = 0; at < 9; at += 1) {
      node.replaceChildren();
      const fresh = new ReadingView(node), began = performance.now();
      fresh.draw(text);
      fromNothing.push(performance.now() - began);
    }
    node.remove();
    done({ median: median(times), rebuilt: median(fromNothing), shown, length: text.length });
  });"""


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Page]:
    with running(build(ScriptedEngine())) as url:
        chromium.get(url)
        yield Page(chromium)


def html(page: Page, text: str) -> str:
    return str(page.driver.execute_async_script(RENDER, text))


CODE = '<div class="code"><pre tabindex="0"><code>{}</code></pre></div>'
LINK = '<a href="{0}" title="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# A\n## B\n#### C\n#no", "<h4>A</h4><h5>B</h5><h6>C</h6><p>#no</p>"),
        ("**a *b* c** _d_ `f*g*`", "<p><strong>a <em>b</em> c</strong> <em>d</em> <code>f*g*</code></p>"),
        ("~~a b~~", "<p><del>a b</del></p>"),
        ("2*3*4 and snake_case_name and 2 ** 3 ** 4", "<p>2*3*4 and snake_case_name and 2 ** 3 ** 4</p>"),
        (r"\*a\* \`b\`", "<p>*a* `b`</p>"),
        ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n\n4. b\n\ntext", '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>'),
        (
            "1. a\n   ```sh\n   ls\n\n   cd\n   ```\n2. b",
            f'<ol start="1"><li>a{CODE.format("ls" + chr(10) * 2 + "cd")}</li><li>b</li></ol>',
        ),
        ("> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"),
        ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
        ("```py\nx < 1 # *no*\n```\nafter", CODE.format("x &lt; 1 # *no*") + "<p>after</p>"),
        ("````\n```\n````", CODE.format("```")),
        (
            "| a | b |\n|---|--:|\n| 1 | x\\|y |\n\nz",
            '<div class="table"><table><thead><tr><th>a</th><th class="right">b</th></tr></thead>'
            '<tbody><tr><td>1</td><td class="right">x|y</td></tr></tbody></table></div><p>z</p>',
        ),
        ("a | b\nno table", "<p>a | b\nno table</p>"),
        ("[x](https://e.org/a_(b))", "<p>" + LINK.format("https://e.org/a_(b)", "x") + "</p>"),
        ("see https://e.org/a, or", "<p>see " + LINK.format("https://e.org/a", "https://e.org/a") + ", or</p>"),
    ],
)  # fmt: skip
def test_what_markdown_becomes(page: Page, text: str, expected: str) -> None:
    assert html(page, text) == expected


HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "[x](javascript:document.title='owned')",
    "[x](JaVaScRiPt:alert(1)) [y](java\tscript:alert(1)) [z]( javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>) [y](vbscript:x) [z](file:///etc/passwd) [b](blob:x)",
    "[x](&#106;avascript:alert(1)) [y](//evil.example/x) [z](/v1/models) [w](page/main.js)",
    "![x](https://evil.example/pixel.png) ![y](javascript:alert(1))",
    '[x](https://e.org "onmouseover=alert(1)") [a](https://e.org/"onclick="alert(1))',
    "| <b>a</b> |\n|---|\n| <img src=x onerror=alert(1)> |",
    "> <iframe src=https://evil.example></iframe>\n\n- <svg onload=alert(1)>\n\n# <style>*{display:none}</style>",
    "```html\n<script>document.title='owned'</script>\n```",
    "`<img src=x onerror=alert(1)>` **<a href=javascript:alert(1)>x</a>**",
    "<a href='javascript:alert(1)'>x</a> <form action=https://evil.example><input name=key>",
]
ALLOWED = {
    "a", "blockquote", "button", "code", "del", "div", "em", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "span",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(page: Page, text: str) -> None:
    script = """
      const [text, done] = arguments;
      import("./page/markdown.js").then(({ render }) => {
        const node = document.createElement("div");
        node.append(...render(text));
        document.body.append(node);
        const all = [...node.querySelectorAll("*")];
        done({
          tags: all.map((one) => one.localName),
          links: all.filter((one) => one.localName === "a").map((one) => [one.protocol, one.rel]),
          handlers: all.flatMap((one) => one.getAttributeNames()).filter((name) => /^on|^style$/.test(name)),
        });
        setTimeout(() => node.remove(), 50);
      });"""
    found: dict[str, Any] = page.driver.execute_async_script(script, text)
    assert set(found["tags"]) <= ALLOWED and not found["handlers"]
    assert all(scheme in ("http:", "https:", "mailto:") and "noopener" in rel for scheme, rel in found["links"])
    assert page.driver.title == "Cadence" and not page.complaints()


EVERYTHING = (
    "# Title\nSome *text* with `code`,\nand more.\n\n1. one\n   - deep\n\n     para\n2. two\n\n"
    "   ```py\n   x = 1\n\n   y\n   ```\n\nThen\n| a | b |\n|---|---|\n| 1 | 2 |\nend\n\n```\nplain\n``\n```` \n\n---\n"
    "> quote\n> - in\n\n\n* last\n\n\n- other\ntext\n```js\nunclosed **code**\n"
)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("cut", [len(EVERYTHING), 120, 61])
def test_text_that_grows_ends_as_text_at_once(page: Page, step: int, cut: int) -> None:
    streamed, whole = page.driver.execute_async_script(STREAM, EVERYTHING[:cut], step)
    assert streamed == whole


@pytest.mark.parametrize(
    "text",
    [
        "a" * 30_000 + " **b** c\n\nd",
        "- item *x*\n" * 2000 + "\nend",
        "- item *x*\n" * 900 + "\nend" + " of *it*" * 2000 + "\nand\n\nmore",
        "| a |\n|---|\n" + "| *x* |\n" * 2000 + "\nend",
        "```\n" + "x = 1\n" * 4000 + "```\nend",
    ],
    ids=["line", "list", "list and line", "table", "code"],
)
def test_long_blocks_end_the_same_too(page: Page, text: str) -> None:
    streamed, whole = page.driver.execute_async_script(STREAM, text, 997)
    assert streamed == whole


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        ("", "words and *more* words, "),
        ("", "A paragraph of **words**.\n\n"),
        ("", "- an item `x`\n"),
        ("", "lines of **words**\n"),
        ("| a |\n|---|\n", "| *b* and some more words of it |\n"),
        ("```\n", "x = [1, 2, 3]  # code\n"),
    ],
    ids=["line", "paragraphs", "list", "lines", "table", "code"],
)
def test_a_drawing_costs_what_is_new_and_not_what_there_is(page: Page, opening: str, piece: str) -> None:
    """Beside rebuilding all of it, which takes tens of milliseconds at these lengths."""
    cost = page.driver.execute_async_script(COST, opening, piece, 900, 200)
    assert cost["shown"] > 0.5 * cost["length"]
    assert cost["median"] < 40.0
    assert cost["median"] <= cost["rebuilt"] / 2


@pytest.mark.parametrize(
    "text",
    ["*a " * 40_000, "[" * 60_000, "[a](" * 30_000, "`a ``b " * 20_000, "**a*" * 30_000, "_a__" * 30_000,
     "https://" * 10_000, "> " * 5_000 + "x", "  " * 3_000 + "- x\n" * 500, "|" * 50_000 + "\n" + "|-" * 25_000,
     "~~a" * 30_000],
    ids=lambda text: repr(text[:8]),
)  # fmt: skip
def test_no_text_takes_long_to_read(page: Page, text: str) -> None:
    script = """
      const [text, done] = arguments;
      import("./page/markdown.js").then(({ render }) => {
        const began = performance.now();
        render(text);
        done(performance.now() - began);
      });"""
    assert page.driver.execute_async_script(script, text) < 60_000
