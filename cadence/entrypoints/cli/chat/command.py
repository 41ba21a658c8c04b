"""`cadence chat`: a conversation in the terminal, or line by line through a pipe, with a model here or a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cadence.config.cli import Parser, add_engine_flags, checked_options, engine_options
from cadence.config.command_line import values
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.chat.conversation import MAX_TOKENS, Conversation, History
from cadence.entrypoints.cli.chat.loop import ChatLoop
from cadence.entrypoints.cli.chat.screen import Screen, open_screen
from cadence.entrypoints.cli.shared.open_llm import open_llm
from cadence.entrypoints.cli.shared.sampling import add_sampling_flags, sampling_options
from cadence.entrypoints.cli.shared.streaming import Answer


def build_parser() -> Parser:
    parser = Parser("cadence chat", "Talk with a model.", "In the chat, /help lists the commands.")
    parser.conflict_handler = "resolve"  # --api-key is for a server here, and refused by the engine
    parser.add_argument("--system-prompt", default="", metavar="TEXT", help="how the model should behave")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="ask one question, print the answer, and leave")
    parser.add_argument(
        "--stats", action=argparse.BooleanOptionalAction, help="say tokens/s after each answer [in a terminal]"
    )
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url", "--base-url", metavar="URL", help="talk with the server there, for example http://127.0.0.1:8000"
    )
    group.add_argument("--model-name", default="", metavar="NAME", help="its model [the first it lists]")
    add_sampling_flags(parser, MAX_TOKENS)
    add_engine_flags(parser)
    group.add_argument("--api-key", default=argparse.SUPPRESS, metavar="KEY", help="sent to it as a bearer token")
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    interactive = sys.stdout.isatty() and (flags.quick is not None or sys.stdin.isatty())
    screen = open_screen(interactive)
    name, chat = _remote(flags) if flags.url is not None else _local(flags)
    if flags.quick is not None:
        return _quick(flags, chat, screen)
    summaries = {None: Answer.speed if interactive else _silence, True: Answer.summary, False: _silence}
    ChatLoop(chat, screen, name, summaries[flags.stats]).run()
    return 0


def _quick(flags: argparse.Namespace, chat: History, screen: Screen) -> int:
    answer = chat.ask(flags.quick, screen.write)
    screen.end_answer()
    if flags.stats:
        screen.note(answer.summary())
    return 130 if answer.finish_reason == "abort" else 0


def _silence(answer: Answer) -> str:
    return ""


def _local(flags: argparse.Namespace) -> tuple[str, History]:
    given = sampling_options(flags)
    options = checked_options(flags, use_tqdm_on_load=sys.stderr.isatty())
    return options["model"], Conversation(open_llm(options), given, flags.system_prompt)


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

    from cadence.entrypoints.cli.chat.remote_conversation import RemoteConversation
    from cadence.entrypoints.cli.remote.answers import Server

    server = Server.find(flags.url, api_key, name)
    return server.model, RemoteConversation(server, fields, flags.system_prompt)
