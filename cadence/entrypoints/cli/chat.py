"""`cadence chat`: a conversation in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cadence.config.cli import Parser, add_engine_flags, engine_options
from cadence.core.errors import InvalidRequestError
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


class Conversation:
    """The messages so far. What the model said before Ctrl-C stays part of it."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str) -> None:
        self._llm = llm
        self._params = params
        self.set_system(system)

    def set_system(self, system: str) -> None:
        self.system = system
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str, face: Face) -> Answer:
        """Raises InvalidRequestError, with the conversation unchanged, when it has grown past the model's length."""
        from cadence.entrypoints.cli.streaming import stream_answer
        from cadence.text.chat_template import ChatRequest

        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self._llm.chat_prompt(ChatRequest(messages))
        answer = stream_answer(self._llm.llm_engine, prompt, self._params, face.write)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer


def build_parser() -> Parser:
    parser = Parser("cadence chat", "Talk with a model.", "In the chat, /help lists the commands.")
    parser.add_argument("--system-prompt", default="", metavar="TEXT", help="how the model should behave")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="ask one question, print the answer, and leave")
    parser.add_argument("--stats", action="store_true", help="print tokens/s on stderr after each answer")
    add_sampling_flags(parser, MAX_TOKENS)
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    given = sampling_options(flags)
    options = engine_options(flags)
    options.setdefault("use_tqdm_on_load", sys.stderr.isatty())
    model = options.pop("model", "smollm2")
    face = open_face(sys.stdin.isatty() and sys.stdout.isatty() and flags.quick is None)

    from cadence.entrypoints.cli.streaming import streaming_params
    from cadence.entrypoints.llm import LLM

    llm = LLM(model, **options)
    chat = Conversation(llm, streaming_params(llm, given, MAX_TOKENS), flags.system_prompt)
    if flags.quick is not None:
        answer = chat.ask(flags.quick, face)
        face.end_answer(answer.summary() if flags.stats else "")
        return 130 if answer.finish_reason == "abort" else 0
    face.welcome(model)
    talk(chat, face, flags.stats)
    return 0


def talk(chat: Conversation, face: Face, stats: bool) -> None:
    """Turn after turn, until the user leaves. Ctrl-C, whenever it comes, is not a way to leave."""
    going = True
    while going:
        try:
            going = turn(chat, face, stats)
        except KeyboardInterrupt:
            face.note("Ctrl-D or /exit leaves")


def turn(chat: Conversation, face: Face, stats: bool) -> bool:
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


def answer(line: str, chat: Conversation, face: Face, stats: bool) -> None:
    try:
        result = chat.ask(line, face)
    except InvalidRequestError as error:
        face.note(f"{error} (/reset begins anew)")
        return
    face.end_answer(result.summary() if stats else "")
    if result.finish_reason == "abort":
        face.note("stopped")


def obey(line: str, chat: Conversation, face: Face) -> None:
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
