"""What requests and engines say beside pictures: names for them, limits, how they are prepared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import LLM
from cadence.core.errors import InvalidRequestError
from tests.e2e.test_media import BASE, FIRST, GREEDY, LONG, SECOND, Answers, answers, prompt
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.helpers.tiny_vision import make_vision

pytestmark = [pytest.mark.engine]

TEXT = "USER: IMAGE\nwhat is the quick brown fox ASSISTANT:"
SHAPE = (4, 32, 40, 3)  # of a video


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    limits = {"limit_mm_per_prompt": {"image": 2, "audio": 0, "vision_chunk": 0}}
    return LLM(model=str(make_vision("llava", tmp_path_factory.mktemp("llava"))), **BASE, **limits)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen_vl("2.5", tmp_path_factory.mktemp("qwen"))


def said(llm: LLM, given: Any) -> Answers:
    return answers(llm.generate(given, GREEDY, use_tqdm=False))


def named(pictures: Any, names: Any, text: str = TEXT, **more: Any) -> dict[str, Any]:
    given = prompt(text, [])
    return {**given, "multi_modal_data": {"image": pictures}, "multi_modal_uuids": {"image": names}, **more}


def test_what_was_sent_under_a_name_need_not_be_sent_again(llm: LLM) -> None:
    first, second = said(llm, [prompt(TEXT, [FIRST]), prompt(TEXT, [SECOND])])
    assert said(llm, named(FIRST, "a")) == said(llm, named([FIRST], ["a"])) == [first]
    assert said(llm, named(None, "a")) == said(llm, named([None], ["a"])) == [first]
    assert said(llm, {**prompt(TEXT, []), "multi_modal_uuids": {"image": ["a"]}}) == [first]
    both = said(llm, prompt("IMAGE and IMAGE", [FIRST, SECOND]))
    assert said(llm, named([None, SECOND], ["a", "b"], "IMAGE and IMAGE")) == both
    assert said(llm, named([None, None], ["a", "b"], "IMAGE and IMAGE")) == both
    assert said(llm, named([FIRST, None], [None, "b"], "IMAGE and IMAGE")) == both
    assert said(llm, named(SECOND, "a")) == [second], "the picture counts, not what it is called"
    assert said(llm, named(None, "a")) == [second], "and is what the name stands for from then on"
    llm.reset_mm_cache()
    for given, words in (
        (named(None, "a"), "none is known here as 'a': send it again"),
        (named(None, "other"), "none is known here as 'other'"),
        (named([None, FIRST], [None, "x"], "IMAGE IMAGE"), "no name in multi_modal_uuids"),
        (named([FIRST], ["x", "y"]), "has 2 names, and multi_modal_data.image has 1"),
        (named([FIRST], [7]), "must be texts of at most 256"),
        (named([FIRST], ["x" * 257]), "must be texts of at most 256"),
        ({**named(FIRST, "x"), "multi_modal_uuids": {"smell": "x"}}, "multi_modal_uuids must be"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            said(llm, given)


def test_names_are_of_those_that_share_a_cache(llm: LLM) -> None:
    llm.reset_mm_cache()
    said(llm, named(FIRST, "mine", cache_salt="me"))
    assert said(llm, named(None, "mine", cache_salt="me"))
    for others in ({"cache_salt": "you"}, {}, {"cache_salt": "me", "tenant": "t"}):
        with pytest.raises(InvalidRequestError, match="none is known here"):
            said(llm, named(None, "mine", **others))


def test_there_are_no_more_than_the_limit_says(llm: LLM) -> None:
    assert said(llm, prompt("IMAGE IMAGE", [FIRST, SECOND]))
    with pytest.raises(InvalidRequestError, match="at most 2 pictures"):
        said(llm, prompt("IMAGE IMAGE IMAGE", [FIRST, SECOND, LONG]))


def test_pictures_in_a_chat_and_what_it_says_of_them(llm: LLM) -> None:
    llm.reset_mm_cache()
    part = {"type": "image", "image": FIRST, "uuid": "c"}
    chat = [{"role": "user", "content": [part, {"type": "text", "text": "what is the quick"}]}]
    again = [
        {"role": "user", "content": [{"type": "image_pil", "image_pil": None, "uuid": "c"}, chat[0]["content"][1]]}
    ]
    mean = {"image_mean": [0.1, 0.2, 0.3]}
    whole, named_alone = (answers(llm.chat(each, GREEDY, use_tqdm=False)) for each in (chat, again))
    assert whole == named_alone != answers(llm.chat(chat, GREEDY, use_tqdm=False, mm_processor_kwargs=mean))


@pytest.mark.parametrize("where", ["engine", "request"])
def test_a_processor_that_is_told_something_else(qwen: Path, tmp_path: Path, where: str) -> None:
    """As if the model's file said it."""
    other = tmp_path / "other"
    other.mkdir()
    for path in qwen.iterdir():
        (other / path.name).symlink_to(path)
    (other / "preprocessor_config.json").unlink()
    settings = json.loads((qwen / "preprocessor_config.json").read_text())
    (other / "preprocessor_config.json").write_text(json.dumps(settings | {"max_pixels": 24 * 24}))
    kwargs = {"mm_processor_kwargs": {"max_pixels": 24 * 24, "min_pixels": None}}
    engine, request = (kwargs, {}) if where == "engine" else ({}, kwargs)
    ask = prompt("IMAGE what is it", [FIRST], "qwen")
    (told,) = said(LLM(model=str(qwen), **BASE, **engine), {**ask, **request})
    (written,) = said(LLM(model=str(other), **BASE), ask)
    (plain,) = said(LLM(model=str(qwen), **BASE), ask)
    assert told == written != plain


def test_frames_without_times(qwen: Path) -> None:
    """So many of a second; two, where it is not said."""
    frames_np = np.random.default_rng(2).integers(0, 256, SHAPE, np.uint8)
    sign = "<|vision_start|><|video_pad|><|vision_end|>"
    ask = {"prompt": f"{sign} what is it", "multi_modal_data": {"video": frames_np}}
    llm = LLM(model=str(qwen), **BASE)
    plain, same, slow = (
        said(llm, {**ask, **({"mm_processor_kwargs": {"fps": fps}} if fps else {})}) for fps in (0, 2, 0.5)
    )
    assert plain == same != slow
    assert said(LLM(model=str(qwen), **BASE, mm_processor_kwargs={"fps": 0.5}), ask) == slow


def test_what_cannot_be_said(llm: LLM, qwen: Path) -> None:
    larger = {"max_pixels": 512 * 512}
    small = LLM(model=str(qwen), **BASE)
    for model, kwargs, words in (
        (llm, {"crop_to_patches": True}, r"crop_to_patches is not known"),
        (
            llm,
            {"size": {"shortest_edge": 40}, "crop_size": 40},
            "mm_processor_kwargs cannot be used: .*image_size is 28",
        ),
        (llm, {"image_mean": "red"}, "image_mean"),
        (llm, [1], "must be an object"),
        (small, larger, "tokens of one image"),
        (small, {"fps": 0}, "fps must be above 0"),
        (small, {"fps": float("nan")}, "fps"),
        (small, {"min_pixels": 7, "max_pixels": 3}, "size must name"),
    ):
        family = "qwen" if model is small else "llava"
        with pytest.raises(InvalidRequestError, match=words):
            said(model, {**prompt("IMAGE", [FIRST], family), "mm_processor_kwargs": kwargs})


def test_media_that_are_longer_than_any_prompt_are_not_all_prepared(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from cadence.media.families.llava import LlavaFamily

    counts: list[str] = []
    prepare = LlavaFamily.prepare

    def counted(self: Any, kind: str, medium: Any) -> Any:
        counts.append(kind)
        return prepare(self, kind, medium)

    monkeypatch.setattr(LlavaFamily, "prepare", counted)
    monkeypatch.setattr(llm.llm_engine._inputs.prompts, "_limits", llm.llm_engine._inputs.prompts._limits.__class__())
    with pytest.raises(InvalidRequestError, match=r"multi_modal_data.image\[\d+\]: with it the media take"):
        said(llm, prompt("IMAGE" * 60, [FIRST] * 60))
    assert len(counts) < 60
