"""Command-line flags derived from fields: the types from annotations, the help from metadata.

Flags of vLLM that have no field here are taken too: `peer_table` says what becomes of them. `--config FILE` holds flags
in YAML or JSON, and flags given by hand win over it.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cadence.config import args as engine_args
from cadence.config.args import EngineArgs
from cadence.config.command_line import argv as words
from cadence.config.command_line import flag_help, values
from cadence.config.command_line.flag_groups import flag_group
from cadence.config.local_files import check_local_files
from cadence.config.peers import peer_table
from cadence.config.peers.peer_flag import FlagKind, PeerFlag, Support
from cadence.core.errors import CadenceError, ConfigError, EngineDeadError, ModelFileError, TokenizerError, WeightsError

logger = logging.getLogger("cadence.config")


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    name: str  # with underscores
    hint: Any
    help: str
    choices: tuple[str, ...] = ()
    default: Any = None

    @property
    def is_switch(self) -> bool:
        return values.parts(self.hint) == [bool]

    @property
    def is_list(self) -> bool:
        return any(typing.get_origin(part) is list for part in values.parts(self.hint))

    @property
    def is_dict(self) -> bool:
        return any(typing.get_origin(part) is dict for part in values.parts(self.hint))


class Parser(argparse.ArgumentParser):
    """Complains in one line and leaves with status 2."""

    def __init__(self, prog: str, description: str, epilog: str = "", positional: str = "") -> None:
        usage = " ".join(filter(None, [prog, "[flags]", positional]))
        super().__init__(
            prog=prog, usage=usage, description=description, epilog=epilog, allow_abbrev=False, add_help=False
        )
        self.add_argument(
            "-h", "--help", action="help", help="print this; --help=WORD: a group, or flags with this word"
        )
        self.add_argument("--config", metavar="FILE", help="take flags from a YAML or JSON file")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Beside the flags, the namespace has `config_only`: names that only the config file gave."""
        tokens = words.normalise(argv)
        self._help_on_demand(tokens)
        try:
            path, by_hand = words.split_config(tokens)
            from_file = words.config_words(Path(path)) if path else {}
        except ConfigError as error:
            self.error(str(error))
        given = self._dests(by_hand)
        file_tokens = [
            token for name, tokens in from_file.items() if self._counts_from_file(name, given) for token in tokens
        ]
        namespace, rest = self.parse_known_args([*file_tokens, *by_hand])
        self._check_rest(rest)
        self._name_repeated(argv)
        namespace.config_only = frozenset(name.replace("-", "_") for name in from_file) - given
        return namespace

    def flags(self) -> list[str]:
        return [name for name in self._option_string_actions if name.startswith("--")]

    def _help_on_demand(self, tokens: Sequence[str]) -> None:
        if topic := next((token for token in tokens if token.startswith("--help=")), ""):
            actions = [action for action in self._actions if action.help is not argparse.SUPPRESS]
            groups = {group.title or "": group._group_actions for group in self._action_groups}
            found = flag_help.about(topic.partition("=")[2], groups, actions)
            print(found or f"{self.format_help()}\n{flag_help.others()}")
            self.exit(0)

    def _dests(self, tokens: Iterable[str]) -> frozenset[str]:
        actions = (self._option_string_actions.get(token.partition("=")[0]) for token in tokens)
        return frozenset(action.dest for action in actions if action is not None)

    def _counts_from_file(self, name: str, given: frozenset[str]) -> bool:
        """Objects add up key by key; whatever else is given by hand replaces what the file says."""
        action = self._option_string_actions.get("--" + name)
        return action is None or action.dest not in given or isinstance(action, _MergeObject)

    def _check_rest(self, rest: Sequence[str]) -> None:
        if unknown := next((token for token in rest if token.startswith("-") and token != "-"), ""):
            name = unknown.split("=")[0]
            if name[2:].removeprefix("no-").replace("-", "_") in peer_table.SERVER_ONLY:
                self.error(f"{name} is a flag of `cadence serve`")
            self.error(f"unknown flag {name}{engine_args.nearest(name, self.flags())}")
        if rest:
            self.error(f"unexpected argument {rest[0]!r}; put a text with spaces in quotes")

    def _name_repeated(self, argv: Sequence[str]) -> None:
        for name in words.repeated(argv):
            action = self._option_string_actions.get(name)
            adds_up = isinstance(action, (_MergeObject, Extend, argparse._AppendAction))
            if not adds_up:
                logger.warning("%s is given more than once: the last one counts", name)


class _MergeObject(argparse.Action):
    """JSON objects and dotted keys of one option add up, key by key."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, flag: str | None = None
    ) -> None:
        try:
            found = words.merged(getattr(namespace, self.dest, None) or {}, words.json_object(value))
        except ValueError:
            raise argparse.ArgumentError(self, f"{value!r} is not a JSON object") from None
        setattr(namespace, self.dest, found)


class Extend(argparse.Action):
    """Several values after one flag, the flag several times, or a JSON list: they add up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"nargs": "+", **options, "default": argparse.SUPPRESS})

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        given = getattr(namespace, self.dest, self.default)
        found: list[Any] = [] if given is self.default else [*given]
        for value in values:
            found += self._items(value)
        setattr(namespace, self.dest, found)

    def _items(self, value: Any) -> list[Any]:
        if not isinstance(value, str):
            return value if isinstance(value, list) else [value]
        if not value.startswith("["):
            return [value]
        try:
            return [str(item) for item in words.json_list(value)]
        except ValueError:
            raise argparse.ArgumentError(self, f"{value!r} is not a JSON list") from None


def engine_flags() -> list[Flag]:
    hints = engine_args.hints()
    return [
        Flag(field.name, hints[field.name], field.metadata["help"], field.metadata["choices"], field.default)
        for field in dataclasses.fields(EngineArgs)
    ]


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Every engine option as a flag, and hidden ones for what else vLLM's engine has."""
    for flag in engine_flags():
        add_flag(flag_group(parser, flag.name), flag)
    add_hidden_flags(parser, server=False)


def add_hidden_flags(parser: argparse.ArgumentParser, server: bool) -> None:
    """Flags of vLLM's engine, or of its server, that no flag of `parser` has the name of. They are judged later."""
    for flag in peer_table.FLAGS.values():
        is_servers = flag.name in peer_table.SERVER_ONLY
        if is_servers == server and flag.flag not in parser._option_string_actions and _can_be_hidden(flag, server):
            _add_hidden(parser, flag)


def _can_be_hidden(flag: PeerFlag, server: bool) -> bool:
    return flag.name != "config" and not (server and flag.support is Support.WORKS and not flag.means)


def engine_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine options given on the command line, and only those."""
    known = {*engine_args.names(), *peer_table.FLAGS} - {"config"}
    return {name: value for name, value in vars(namespace).items() if name in known}


def checked_options(namespace: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """Keywords for `LLM(...)`: the options given on the command line over `defaults`, all checked, and so are
    the files on this machine that they name. Nothing heavy is imported for it: a mistake is told at once."""
    args = EngineArgs.from_options(**{**defaults, **engine_options(namespace)})
    check_local_files(args)
    return dataclasses.asdict(args)


def add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    """Absent flags leave no trace in the namespace: defaults belong to the dataclass."""
    shown = "" if flag.default in (None, "", dataclasses.MISSING) else f" [{flag.default}]"
    text = (flag.help + shown).replace("%", "%%")
    option: dict[str, Any] = {"dest": flag.name, "default": argparse.SUPPRESS, "help": text}
    if flag.is_switch:
        option["action"] = argparse.BooleanOptionalAction
    elif flag.is_dict:
        option |= {"action": _MergeObject, "metavar": "JSON"}
    else:
        kind = values.parts(flag.hint)[-1]
        option["metavar"] = "{" + ",".join(flag.choices) + "}" if flag.choices else _METAVARS.get(kind, "TEXT")
        option["action"] = _LIST_ACTIONS.get(kind, "append") if flag.is_list else "store"
    if flag.name == "hf_token":
        option |= {"nargs": "?", "const": True}  # alone it asks for the token that was saved
    group.add_argument(*_spellings(group, flag.name), **option)


_LIST_ACTIONS: dict[Any, Any] = {list[str]: Extend}
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def _spellings(group: argparse._ActionsContainer, name: str) -> list[str]:
    """The short form of vLLM too, unless the command has another use for it."""
    peer = peer_table.FLAGS.get(name)
    short = peer.short if peer is not None else ""
    return [words.spelled(name), *([short] if short and short not in group._option_string_actions else [])]


def _add_hidden(parser: argparse.ArgumentParser, flag: PeerFlag) -> None:
    hidden: dict[str, Any] = {"dest": flag.name, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    spellings = _spellings(parser, flag.name)
    if flag.kind is FlagKind.SWITCH:
        parser.add_argument(*spellings, **hidden, action=argparse.BooleanOptionalAction)
    elif flag.kind is FlagKind.OBJECT:
        parser.add_argument(*spellings, **hidden, action=_MergeObject)
    elif flag.kind is FlagKind.LIST:
        parser.add_argument(*spellings, **hidden, action=Extend, type=words.literal)
    else:
        parser.add_argument(*spellings, **hidden, type=words.literal)


def exit_status(error: CadenceError) -> int:
    """2: what the user wrote cannot be carried out. 1: it was begun and failed, by a model's files or an engine."""
    return 1 if isinstance(error, ModelFileError | WeightsError | TokenizerError | EngineDeadError) else 2


def fail(prog: str, error: CadenceError, status: int = 0) -> NoReturn:
    """The one way a command ends on a mistake: a line on stderr. status: 0 = as `exit_status` says"""
    print(f"{prog}: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(status or exit_status(error))
