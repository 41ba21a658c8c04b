"""Where chats of every kind have their pictures, and what stands in their places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.media.chat_parts import medium_part, split_media
from cadence.media.parts import MediaPart
from cadence.text.chat_template import ChatRequest, ChatTemplates
from cadence.text.special_tokens import SpecialTokens

URL = "https://pictures.test/a.png"
TEXT = {"type": "text", "text": "what is it?"}


def content(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, "image_url.url"),
        ({"type": "image_url", "image_url": URL}, "image_url"),
        ({"image_url": URL}, "image_url"),
        ({"type": "input_image", "image_url": URL, "detail": "auto"}, "image_url"),
        ({"type": "image", "image": URL}, "image"),
        ({"type": "image", "url": URL}, "url"),
        ({"type": "video_url", "video_url": {"url": URL}}, "video_url.url"),
        ({"type": "video", "video": URL}, "video"),
    ],
)
def test_urls(part: dict[str, Any], where: str) -> None:
    cleaned, parts = split_media(content(TEXT, part))
    kind = VIDEO if "video" in str(part) else IMAGE
    assert parts == (MediaPart(kind, f"messages[0].content[1].{where}", URL),)
    assert cleaned == content(TEXT, {"type": kind})


def test_names() -> None:
    """Without what they stand for, they name what was sent before."""
    parts: list[tuple[dict[str, Any], MediaPart]] = [
        ({"image_url": {"url": URL, "uuid": "a"}, "uuid": "b"}, MediaPart(IMAGE, ".image_url.url", URL, uuid="b")),
        ({"image_url": {"url": URL, "uuid": "a"}}, MediaPart(IMAGE, ".image_url.url", URL, uuid="a")),
        ({"type": "image_url", "image_url": None, "uuid": "a"}, MediaPart(IMAGE, "", uuid="a")),
        ({"type": "image_url", "image_url": {"uuid": "a"}}, MediaPart(IMAGE, ".image_url.url", uuid="a")),
        ({"type": "video", "uuid": "a"}, MediaPart(VIDEO, "", uuid="a")),
    ]
    for given, expected in parts:
        _, (found,) = split_media(content(TEXT, given))
        assert found == replace(expected, where=f"messages[0].content[1]{expected.where}")
        assert found.was_sent_before == (not expected.url)


def test_order_and_places() -> None:
    image, video = {"type": "image_url", "image_url": URL}, {"type": "video_url", "video_url": URL}
    messages = [*content(image, TEXT, video), {"role": "assistant", "content": "no"}, *content(video, image)]
    cleaned, parts = split_media(messages)
    assert [part.where.rpartition(".")[0] for part in parts] == [
        "messages[0].content[0]", "messages[0].content[2]", "messages[2].content[0]", "messages[2].content[1]",
    ]  # fmt: skip
    assert [part.kind for part in parts] == [IMAGE, VIDEO, VIDEO, IMAGE] and cleaned[1] is messages[1]
    assert messages[0]["content"][0] is image  # what was given stays as it was


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url"}, ""), ({"type": "image_url", "image_url": None, "uuid": ""}, ""),
        ({"type": "image_url", "image_url": {}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": None}}, ".image_url.url"),
        ({"type": "image_url", "image_url": 3}, ".image_url"),
        ({"type": "image_url", "image_url": [URL]}, ".image_url"),
        ({"type": "image_url", "image_url": "/etc/passwd"}, ".image_url"),
        ({"type": "image", "image": "a.png"}, ".image"), ({"type": "input_image", "file_id": "f"}, ".file_id"),
        ({"type": "image_url", "image_url": URL, "uuid": 3}, ".uuid"), ({"type": "image"}, ""),
        ({"type": "image", "media": URL}, ""), ({"type": "image_pil", "image_pil": {}}, ".image_pil.url"),
        ({"type": "video", "video": [URL]}, ".video"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(part: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        split_media(content(TEXT, part))
    assert caught.value.field == f"messages[0].content[1]{field}" and caught.value.field in str(caught.value)


def test_a_model_sees_what_it_sees() -> None:
    for kinds, name in (((), "image_url"), ((IMAGE,), "video_url")):
        with pytest.raises(InvalidRequestError, match=rf"type is '{name}': only text") as caught:
            split_media(content({"type": name, name: URL}), kinds)
        assert caught.value.field == "messages[0].content[0].type"
    part = medium_part(MediaPart(IMAGE, "input[3].content[1].image_url", URL), "input[3].content[1]", "input_image")
    with pytest.raises(InvalidRequestError, match=r"input\[3\].content\[1\].type is 'input_image'"):
        split_media(content(part), ())
    assert split_media(content(part))[1][0].where == "input[3].content[1].image_url"


def test_in_python_media_may_be_objects() -> None:
    """A text is a URL there, too: conversations may be others'."""
    value = Path("a.png")
    for part in ({"type": "image", "image": value}, {"type": "image_pil", "image_pil": value}):
        assert split_media(content(part), values=True)[1][0].value is value
        with pytest.raises(InvalidRequestError):
            split_media(content(part))
    with pytest.raises(InvalidRequestError, match=r"pathlib\.Path"):
        split_media(content({"type": "image", "image": "a.png"}), values=True)


def test_other_messages_stay_as_they_are() -> None:
    strange = content(3, "a", {}, {"type": 3}, TEXT)
    for messages in ([3], [{}], [{"role": "user"}], [{"role": "user", "content": 3}], strange):
        assert split_media(messages) == (messages, ())


STRINGS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}{% if c['type'] == 'image' %}<pic>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
SIGNS = {"image": "<image>", "video": "<video>"}


def rendered(template: str, messages: list[dict[str, Any]], **fields: Any) -> str:
    chat = ChatRequest(messages, add_generation_prompt=False, placeholders=SIGNS, **fields)
    return ChatTemplates().render(template, chat, SpecialTokens())


def test_templates_that_read_parts_write_their_own_sign() -> None:
    assert rendered(PARTS, content(TEXT, {"type": "image"}, TEXT)) == "user: what is it?<pic>what is it?"


def test_before_a_string_stand_the_signs_of_the_family() -> None:
    parts = (TEXT, {"type": "image"}, {"type": "video"}, {"type": "text", "text": "and?"})
    assert rendered(STRINGS, content(*parts)) == "user: <image>\n<video>\nwhat is it?\nand?\n"
    assert rendered(PARTS, content(*parts), content_format="string").count("<image>") == 0  # it reads characters then
    tool = [{"role": "tool", "content": [{"type": "image"}, TEXT]}]
    assert rendered(STRINGS, tool) == "tool: <image>\nwhat is it?\n"


def test_without_signs_there_are_no_pictures() -> None:
    with pytest.raises(InvalidRequestError, match="only text parts"):
        ChatTemplates().render(PARTS, ChatRequest(content({"type": "image"})), SpecialTokens())


def test_a_picture_cannot_be_gone_on_with() -> None:
    with pytest.raises(InvalidRequestError, match="no text to continue"):
        rendered(PARTS, content(TEXT, {"type": "image"}), continue_final_message=True)
