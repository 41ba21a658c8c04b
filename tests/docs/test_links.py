"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.docs.blocks import ROOT, pages

_LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def _anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages())
def test_links(page: str) -> None:
    text = re.sub(r"`[^`]*`", "", (ROOT / page).read_text(encoding="utf-8"))
    wrong = []
    for link in _LINK.findall(text):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in _anchors(str(target.resolve().relative_to(ROOT))):
            wrong.append(f"{link}: no such heading")
    assert not wrong, "\n".join(f"{page}: {line}" for line in wrong)


def test_every_page_is_in_the_index() -> None:
    """docs/README.md leads to every page of docs/."""
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    linked = {str((ROOT / "docs" / link.split("#")[0]).resolve()) for link in _LINK.findall(index)}
    missing = [page for page in pages() if page.startswith("docs/") and str((ROOT / page).resolve()) not in linked]
    assert missing in ([], ["docs/README.md"]), missing
