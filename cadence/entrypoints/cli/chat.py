"""`cadence chat`: a conversation in the terminal, or line by line through a pipe, with a model here or a server."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cadence.config import values
from cadence.config.cli import Parser, add_engine_flags, checked_options, engine_options
from cadence.core.errors import CadenceError, ConfigError, InvalidRequestError
from cadence.entrypoints.cli.face import Face, open_face
from cadence.entrypoints.cli.sampling import add_sampling_flags, sampling_options

if TYPE_CHECKING:
    from cadence.core.sampling_params import SamplingParams
    from cadence.entrypoints.cli.streaming import Answer
    from cadence.entrypoints.llm import LLM

MAX_TOKENS = 1024

HELP = """/reset         forget the conversation
/system TEXT   set the system prompt and begin anew; without TEXT: show it
/help          this list
/exit          leave (or Ctrl-D)
Ctrl-C stops an answer."""


class TurnError(CadenceError):
    """This answer failed; the conversation is as it was before, and may go on."""


class History(ABC):
    """The messages so far. What the model said before Ctrl-C stays part of them. Subclasses know whom to ask."""

    def __init__(self, system: str) -> None:
        self.set_system(system)

    def set_system(self, system: str) -> None:
        self.system = system
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str, face: Face) -> Answer:
        """Raises InvalidRequestError or TurnError, with the conversation unchanged."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = self.answer(messages, face.write)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    @abstractmethod
    def answer(self, messages: list[dict[str, Any]], write: Callable[[str], None]) -> Answer:
        """`write` gets the text as it comes; Ctrl-C ends it early, with finish reason `abort`."""


class Conversation(History):
    """With a model loaded in this process."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str) -> None:
        super().__init__(system)
        self._llm = llm
        self._params = params

    def answer(self, messages: list[dict[str, Any]], write: Callable[[str], None]) -> Answer:
        from cadence.entrypoints.cli.streaming import stream_answer
        from cadence.text.chat_template import ChatRequest

        prompt = self._llm.chat_prompt(ChatRequest(messages))
        return stream_answer(self._llm.llm_engine, prompt, self._params, write)


def build_parser() -> Parser:
    parser = Parser("cadence chat", "Talk with a model.", "In the chat, /help lists the commands.")
    parser.conflict_handler = "resolve"  # --api-key is for a server here, and refused by the engine
    parser.add_argument("--system-prompt", default="", metavar="TEXT", help="how the model should behave")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="ask one question, print the answer, and leave")
    parser.add_argument("--stats", action="store_true", help="print tokens/s on stderr after each answer")
    group = parser.add_argument_group("server")
    group.add_argument("--url", metavar="URL", help="talk with the server there, for example http://127.0.0.1:8000")
    group.add_argument("--model-name", default="", metavar="NAME", help="its model [the first it lists]")
    add_sampling_flags(parser, MAX_TOKENS)
    add_engine_flags(parser)
    group.add_argument("--api-key", default=argparse.SUPPRESS, metavar="KEY", help="sent to it as a bearer token")
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    face = open_face(sys.stdin.isatty() and sys.stdout.isatty() and flags.quick is None)
    name, chat = _remote(flags) if flags.url is not None else _local(flags)
    if flags.quick is not None:
        answer = chat.ask(flags.quick, face)
        face.end_answer(answer.summary() if flags.stats else "")
        return 130 if answer.finish_reason == "abort" else 0
    face.welcome(name)
    talk(chat, face, flags.stats)
    return 0


def _local(flags: argparse.Namespace) -> tuple[str, History]:
    given = sampling_options(flags)
    options = checked_options(flags, use_tqdm_on_load=sys.stderr.isatty())

    from cadence.entrypoints.cli.streaming import streaming_params
    from cadence.entrypoints.llm import LLM

    llm = LLM(**options)
    return options["model"], Conversation(llm, streaming_params(llm, given, MAX_TOKENS), flags.system_prompt)


def _remote(flags: argparse.Namespace) -> tuple[str, History]:
    """Sampling flags travel with the requests. Engine flags are the server's business."""
    options = engine_options(flags)
    api_key = options.pop("api_key", "")
    fields = sampling_options(flags)
    if "seed" in options:
        fields["seed"] = values.coerce("seed", int, options.pop("seed"))
    name = flags.model_name or options.pop("model", "")
    if options:
        flag = "--" + next(iter(options)).replace("_", "-")
        raise ConfigError(f"{flag} is for a model loaded here; with --url, give it to the server", next(iter(options)))

    from cadence.entrypoints.cli.remote_chat import RemoteConversation, Server

    server = Server.find(flags.url, api_key, name)
    return server.model, RemoteConversation(server, fields, flags.system_prompt)


def talk(chat: History, face: Face, stats: bool) -> None:
    """Turn after turn, until the user leaves. Ctrl-C, whenever it comes, is not a way to leave."""
    going = True
    while going:
        try:
            going = turn(chat, face, stats)
        except KeyboardInterrupt:
            face.note("Ctrl-D or /exit leaves")


def turn(chat: History, face: Face, stats: bool) -> bool:
    """False when the user leaves."""
    try:
        line = face.read().strip()
    except EOFError:
        face.farewell()
        return False
    if line == "/exit":
        return False
    if line.startswith("/"):
        obey(line, chat, face)
    elif line:
        answer(line, chat, face, stats)
    return True


def answer(line: str, chat: History, face: Face, stats: bool) -> None:
    try:
        result = chat.ask(line, face)
    except InvalidRequestError as error:
        face.note(f"{error} (/reset begins anew)")
        return
    except TurnError as error:
        face.note(str(error))
        return
    face.end_answer(result.summary() if stats else "")
    if result.finish_reason == "abort":
        face.note("stopped")


def obey(line: str, chat: History, face: Face) -> None:
    command, _, text = line.partition(" ")
    if command == "/reset":
        chat.reset()
        face.note("a new conversation")
    elif command == "/system":
        if text.strip():
            chat.set_system(text.strip())
            face.note("a new conversation with this system prompt")
        else:
            face.note(chat.system or "no system prompt")
    elif command == "/help":
        face.note(HELP)
    else:
        face.note(f"unknown command {command}; /help lists them")
