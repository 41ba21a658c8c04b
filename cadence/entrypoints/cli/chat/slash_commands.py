"""What a line that begins with a slash does in a chat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cadence.config.args import nearest
from cadence.core.errors import CadenceError, InvalidRequestError
from cadence.core.shown import counted
from cadence.entrypoints.cli.chat import transcript
from cadence.entrypoints.cli.chat.attached import image_part
from cadence.entrypoints.cli.chat.screen import Screen
from cadence.entrypoints.cli.shared.streaming import Answer

if TYPE_CHECKING:
    from cadence.entrypoints.cli.chat.conversation import History


class CommandTarget(Protocol):
    """What commands change of a chat."""

    chat: History
    screen: Screen
    model: str
    saved: set[Path]  # files this chat has written, and may write again
    running: bool

    def answer(self, ask: Callable[[Callable[[str], None]], Answer]) -> None: ...


Command = Callable[[CommandTarget, str], None]


def show_help(loop: CommandTarget, argument: str) -> None:
    width = max(len(usage) for usage, _, _ in COMMANDS.values())
    lines = [f"{usage:<{width}}  {text}" for usage, text, _ in COMMANDS.values()]
    loop.screen.note("\n".join([*lines, *KEYS]))


def reset(loop: CommandTarget, argument: str) -> None:
    loop.chat.reset()
    loop.screen.note("a new conversation")


def system(loop: CommandTarget, argument: str) -> None:
    if not argument:
        loop.screen.note(loop.chat.system or "no system prompt")
        return
    loop.chat.set_system(argument)
    loop.screen.note("a new conversation with this system prompt")


def set_option(loop: CommandTarget, argument: str) -> None:
    settings = loop.chat.settings
    name, *value = argument.split(maxsplit=1)[:2] if argument else ("",)
    if not name:
        loop.screen.note(str(settings))
    elif not value:
        loop.screen.note(settings.describe(settings.known(name)))
    else:
        loop.screen.note(settings.set(name, value[0].strip()))


def retry(loop: CommandTarget, argument: str) -> None:
    loop.answer(loop.chat.retry)


def save(loop: CommandTarget, argument: str) -> None:
    if not argument:
        raise InvalidRequestError("name a file: /save talk.md or /save talk.json", "path")
    if not loop.chat.messages:
        raise InvalidRequestError("nothing was said yet", "messages")
    path = Path(argument).expanduser()
    if path.exists() and path not in loop.saved:
        raise InvalidRequestError(f"{path} is there already; choose another name", "path")
    transcript.save(path, loop.chat.messages, loop.model)
    loop.saved.add(path)
    loop.screen.note(f"saved to {path}")


def image(loop: CommandTarget, argument: str) -> None:
    if not argument:
        raise InvalidRequestError("name a file: /image picture.png", "path")
    count = loop.chat.attach(image_part(Path(argument).expanduser()))
    loop.screen.note(f"goes with your next message: {counted(count, 'picture')}")


def leave(loop: CommandTarget, argument: str) -> None:
    loop.running = False


# name -> (how it is written, what it does, the function)
COMMANDS: dict[str, tuple[str, str, Command]] = {
    "/retry": ("/retry", "ask the last question again; the new answer takes the old one's place", retry),
    "/set": (
        "/set NAME VALUE",
        "change a sampling option: /set temperature 0.2; default takes it back",
        set_option,
    ),
    "/system": ("/system TEXT", "set the system prompt and start a new conversation; without TEXT: show it", system),
    "/save": ("/save FILE", "write the conversation as Markdown (.md) or JSON (.json)", save),
    "/image": ("/image FILE", "show the model a picture with the next message; several may go with one", image),
    "/reset": ("/reset", "forget the conversation (also /clear)", reset),
    "/help": ("/help", "this list", show_help),
    "/exit": ("/exit", "leave (also /quit and Ctrl-D)", leave),
}
ALIASES = {"/clear": "/reset", "/quit": "/exit", "/bye": "/exit", "/?": "/help"}
KEYS = (
    "Ctrl-C stops an answer. Alt-Enter or Ctrl-J breaks the line, as does \\ at its end; pasted lines are one message.",
    "A message that begins with a slash: put a space in front of it.",
)


def words(settings: list[str]) -> list[str]:
    """What Tab completes."""
    return [*COMMANDS, *(f"/set {name}" for name in settings)]


def run_command(loop: CommandTarget, line: str) -> None:
    name, _, argument = line.partition(" ")
    known = COMMANDS.get(ALIASES.get(name, name))
    if known is None:
        loop.screen.note(f"unknown command {name} (/help lists them){nearest(name, COMMANDS)}")
        return
    try:
        known[2](loop, argument.strip())
    except CadenceError as error:
        loop.screen.note(str(error))
