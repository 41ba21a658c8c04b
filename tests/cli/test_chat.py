"""The chat of the terminal: what is remembered, what the commands do, and how a streamed answer is wrapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import CadenceError
from cadence.entrypoints.cli.chat.conversation import Conversation
from cadence.entrypoints.cli.chat.loop import ChatLoop
from cadence.entrypoints.cli.chat.settings import ChatSettings
from cadence.entrypoints.cli.chat.wrap import WordWrap, char_width
from cadence.entrypoints.cli.shared.streaming import Answer
from tests.cli.chat_fakes import FakeEngine, FakeLLM, Script
from tests.media.pictures import data_url, picture


def conversation(engine: FakeEngine, system: str = "", **given: Any) -> Conversation:
    return Conversation(FakeLLM(engine), given, system)  # type: ignore[arg-type]


def play(chat: Conversation, *lines: Any) -> Script:
    screen = Script(list(lines))
    ChatLoop(chat, screen, "fake", lambda answer: "").run()
    return screen


def test_chat_remembers_and_resets() -> None:
    engine = FakeEngine(["hi"])
    chat = conversation(engine, "be brief")
    screen = play(chat, "hello", "", "again", "/reset", "/exit", "never read")
    assert [len(prompt["prompt_token_ids"]) for prompt in engine.prompts] == [2, 4]
    assert chat.messages == [{"role": "system", "content": "be brief"}]
    assert screen.text == "hi\nhi\n" and screen.lines == ["never read"]


def test_commands() -> None:
    chat = conversation(FakeEngine(["x"]))
    screen = play(chat, "/system", "/system be kind", "/help", "/nonsense", "/rety", KeyboardInterrupt)
    assert chat.system == "be kind"
    assert (
        screen.notes[0] == "no system prompt" and "/reset" in screen.notes[2] and "/set NAME VALUE" in screen.notes[2]
    )
    assert screen.notes[3:] == [
        "unknown command /nonsense (/help lists them)",
        "unknown command /rety (/help lists them); did you mean /retry?",
        "Ctrl-D or /exit leaves",
    ]


def test_what_begins_with_a_space_is_never_a_command() -> None:
    chat = conversation(FakeEngine(["x"]))
    play(chat, " /reset is a command, is it not?")
    assert chat.messages[0]["content"] == "/reset is a command, is it not?"


def test_what_was_said_before_an_interrupt_stays() -> None:
    chat = conversation(FakeEngine(["a", "b", "c"], interrupt_after=0))
    screen = play(chat, "go")
    assert chat.messages[-1] == {"role": "assistant", "content": "a"} and "stopped" in screen.notes


def test_a_conversation_too_long_is_said_and_left_as_it_was() -> None:
    chat = conversation(FakeEngine(["ok"], limit=2))
    screen = play(chat, "one", "two", "/reset", "three")
    assert screen.text == "ok\nok\n" and "too long" in screen.notes[0]
    assert chat.messages[0] == {"role": "user", "content": "three"}


class TestRetry:
    def test_the_new_answer_takes_the_place_of_the_old_one(self) -> None:
        engine = FakeEngine(["hi"])
        chat = conversation(engine)
        screen = play(chat, "one", "two", "/retry", "/retry")
        assert [len(prompt["prompt_token_ids"]) for prompt in engine.prompts] == [1, 3, 3, 3]
        assert [message["content"] for message in chat.messages] == ["one", "hi", "two", "hi"]
        assert screen.text == "hi\n" * 4

    def test_a_question_that_failed_is_asked_again(self) -> None:
        engine = FakeEngine(["ok"], limit=2)
        chat = conversation(engine)
        play(chat, "one", "two")  # the second is too long
        engine.limit = 9
        play(chat, "/retry")
        assert [message["content"] for message in chat.messages] == ["one", "ok", "two", "ok"]

    def test_nothing_to_retry(self) -> None:
        screen = play(conversation(FakeEngine(["ok"])), "/retry")
        assert screen.notes[0] == "nothing was asked yet" and screen.text == ""


class TestSettings:
    def test_values_are_read_as_flags_are(self) -> None:
        settings = ChatSettings({"top_p": 0.5}, 1024)
        assert settings.set("temperature", "0.2") == "temperature = 0.2"
        assert settings.set("max-tokens", "1k") == "max_tokens = 1000"
        assert settings.set("stop", '["\\n\\n", "END"]') == 'stop = ["\\n\\n", "END"]'
        assert settings.set("min_tokens", "100") == "min_tokens = 100"  # below 1000, though above 16
        assert settings.set("seed", "7") == "seed = 7" and settings.set("top_p", "default") == "top_p: default"
        assert settings.given == {
            "temperature": 0.2, "max_tokens": 1000, "stop": ["\n\n", "END"], "min_tokens": 100, "seed": 7,
        }  # fmt: skip
        assert "temperature = 0.2\n" in str(settings) and "default: top_p, top_k" in str(settings)

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("temperature", "hot", "temperature: expected a number"),
            ("temperature", "-1", "temperature"),
            ("top_p", "3", "top_p"),
            ("max_tokens", "0", "max_tokens"),
            ("stop", "[1", "stop=.1 is not valid JSON"),
            ("temprature", "1", "no setting temprature .*; did you mean temperature"),
            ("n", "2", "no setting n"),
        ],
    )
    def test_a_wrong_value_is_said_and_changes_nothing(self, name: str, text: str, said: str) -> None:
        settings = ChatSettings({"temperature": 0.5}, 1024)
        with pytest.raises(CadenceError, match=said):
            settings.set(name, text)
        assert settings.given == {"temperature": 0.5}

    def test_the_next_answer_follows_them(self) -> None:
        engine = FakeEngine(["ok"])
        screen = play(conversation(engine), "/set", "/set temperature 0.5", "/set temperature", "/set top_p 9", "go")
        assert screen.notes[0].startswith("default: max_tokens") and screen.notes[1:3] == ["temperature = 0.5"] * 2
        assert "top_p" in screen.notes[3]
        params = engine.params[0]
        assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 1024)


class TestSave:
    @pytest.fixture
    def chat(self) -> Conversation:
        return conversation(FakeEngine(["Fine,", " *thanks*."]), "be kind")

    def test_markdown(self, chat: Conversation, tmp_path: Path) -> None:
        path = tmp_path / "talk.md"
        assert play(chat, "How are\nyou?", f"/save {path}").notes[0] == f"saved to {path}"
        assert path.read_text() == (
            "# A conversation with fake\n\n## System\n\nbe kind\n\n"
            "## You\n\nHow are\nyou?\n\n## fake\n\nFine, *thanks*.\n"
        )

    def test_json_can_be_sent_again(self, chat: Conversation, tmp_path: Path) -> None:
        path = tmp_path / "talk.json"
        play(chat, "Wie geht’s?", f"/save {path}", "/save " + str(path))
        assert json.loads(path.read_text()) == {"model": "fake", "messages": chat.messages}

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("", "name a file"), ("talk.docx", "neither in .md"), ("none/talk.md", "cannot write"),
            ("there.md", "is there already"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_written(self, chat: Conversation, tmp_path: Path, name: str, said: str) -> None:
        (tmp_path / "there.md").write_text("mine")
        screen = play(chat, "hi", f"/save {tmp_path / name if name else ''}")
        assert said in screen.notes[0] and (tmp_path / "there.md").read_text() == "mine"

    def test_an_empty_conversation(self, tmp_path: Path) -> None:
        assert play(conversation(FakeEngine(["x"])), f"/save {tmp_path}/a.md").notes[0] == "nothing was said yet"


def test_speed() -> None:
    answer = Answer("…", 5, 21, "length", 0.25, 2.25)
    assert answer.speed() == ("21 tokens · 10.0 tok/s · first after 0.25 s · token limit (/set max_tokens N)")
    assert Answer("", 5, 1, "abort", 0.5, 0.5).speed() == "1 token · first after 0.50 s · stopped"
    assert Answer("", 5, 0, "abort").speed() == "0 tokens · stopped"


def wrapped(text: str, columns: int = 21, size: int = 1) -> str:
    """`text` in pieces of `size` characters."""
    wrap = WordWrap(lambda: columns)
    return "".join(wrap.feed(text[at : at + size]) for at in range(0, len(text), size)) + wrap.finish()


TEXTS = {
    "words": ("The sky is blue because air scatters.", "The sky is blue\nbecause air\nscatters."),
    "lines": ("One\n\ntwo\n", "One\n\ntwo\n"),
    "exact": ("12345 12345 12345 89 1", "12345 12345 12345 89\n1"),
    "bullet": ("- alpha beta gamma delta epsilon", "- alpha beta gamma\n  delta epsilon"),
    "number": ("10. alpha beta gamma delta", "10. alpha beta gamma\n    delta"),
    "indent": ("  alpha beta gamma delta", "  alpha beta gamma\n  delta"),
    "code": (
        "```py\nx = 1  # a long line of code that stays\n```\nand words after the code",
        "```py\nx = 1  # a long line of code that stays\n```\nand words after the\ncode",
    ),
    "overlong": ("see https://example.org/a/long/address now", "see\nhttps://example.org/a/long/address\nnow"),
    "wide": ("空は青いです。なぜなら空気が", "空は青いです。なぜな\nら空気が"),
    "closing": ("空は青いですよなぜら。空気", "空は青いですよなぜ\nら。空気"),
    "emoji": ("🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂", "🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂\n🙂"),
    "combining": ("e\u0301" * 20 + " e", "e\u0301" * 20 + "\ne"),
    "control": ("a\x1b[2Jb\x07\x9bc\r\nd", "a␛[2Jb␇\ufffdc\nd"),
}


class TestWrap:
    @pytest.mark.parametrize("name", TEXTS)
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
    def test_wraps_the_same_whatever_the_pieces(self, name: str, size: int) -> None:
        text, shown = TEXTS[name]
        assert wrapped(text, size=size) == shown

    def test_a_word_is_held_back_until_it_ends_and_no_longer(self) -> None:
        wrap = WordWrap(lambda: 80)
        assert wrap.feed("Hel") == "" and wrap.feed("lo wor") == "Hello" and wrap.feed("ld.\n") == " world.\n"
        assert wrap.feed("空") == "" and wrap.feed("気") == "空" and wrap.finish() == "気"

    def test_lines_never_exceed_the_width(self) -> None:
        text = "空気 mixed with words, 🙂 and\tsome - bullets 1. in (between) " * 20
        assert all(sum(map(char_width, line)) <= 30 for line in wrapped(text, 31).split("\n"))

    def test_a_terminal_of_unknown_width_wraps_by_itself(self) -> None:
        assert wrapped("word " * 100, columns=0).count("\n") == 0


class TestImage:
    """A picture goes with the next question, and stays in the conversation with it."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (tmp_path / "a b.png").write_bytes(picture())
        return tmp_path / "a b.png"

    def test_it_goes_with_the_next_question(self, file: Path, tmp_path: Path) -> None:
        chat = conversation(FakeEngine(["Fine"]))
        screen = play(chat, f"/image {file}", f"/image {file}", "what is it?", "and now?", f"/save {tmp_path}/talk.md")
        assert screen.notes[:2] == [
            "goes with your next message: 1 picture",
            "goes with your next message: 2 pictures",
        ]
        part = {"type": "image_url", "image_url": {"url": data_url(picture())}}
        assert chat.messages[0] == {"role": "user", "content": [part, part, {"type": "text", "text": "what is it?"}]}
        assert chat.messages[2] == {"role": "user", "content": "and now?"}
        assert "(a picture)\n\n(a picture)\n\nwhat is it?" in (tmp_path / "talk.md").read_text()

    def test_a_question_that_is_asked_again_has_it_still(self, file: Path) -> None:
        chat = conversation(FakeEngine(["Fine"]))
        play(chat, f"/image {file}", "what is it?", "/retry")
        assert len(chat.messages) == 2 and len(chat.messages[0]["content"]) == 2

    def test_a_new_conversation_has_none(self, file: Path) -> None:
        chat = conversation(FakeEngine(["Fine"]))
        play(chat, f"/image {file}", "/reset", "hello")
        assert chat.messages[0]["content"] == "hello"

    def test_what_is_no_picture_is_said(self, file: Path) -> None:
        file.write_bytes(b"no picture")
        screen = play(conversation(FakeEngine(["x"])), f"/image {file}", "/image", "/image /no/such/file")
        assert "no picture of a format" in screen.notes[0] and "name a file" in screen.notes[1]
        assert "no such file" in screen.notes[2]
