"""The flags of `cadence serve`, and what they say."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cadence.config import env, peer_env
from cadence.config.args import EngineArgs, names
from cadence.config.cli import Extend, Flag, Parser, add_engine_flags, add_flag, add_hidden_flags, engine_options
from cadence.config.command_line.flag_groups import flag_group
from cadence.config.peers.peer_flag import PeerFlag
from cadence.config.peers.peer_table import FLAGS, SERVER_ONLY
from cadence.core.errors import ConfigError

if TYPE_CHECKING:
    from cadence.config.server.serve_options import ServeOptions

_SHARED = ("chat_template", "trust_request_chat_template")  # options of the engine that the routes ask for too


def build_parser(kind: type[Parser] = Parser) -> Parser:
    parser = kind("cadence serve", "Serve a model over HTTP, as OpenAI does.", positional="[MODEL]")
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="alias, folder, .gguf file, or hub id")
    for flag in serve_flags():
        add = _add_list if flag.is_list else add_flag
        add(flag_group(parser, flag.name), flag)
    add_hidden_flags(parser, server=True)
    add_engine_flags(parser)
    return parser


def check_formats(args: EngineArgs, options: ServeOptions) -> None:
    """Raises what is wrong with the formats and the adapters that are named."""
    from cadence.entrypoints.server.chat.format_tables import load_formats
    from cadence.entrypoints.server.routes.served_adapters import served_at_start

    load_formats(options)
    served_at_start(options.lora_modules, options.served_model_name, options.lora_root, args.enable_lora)


def read_flags(flags: argparse.Namespace) -> tuple[EngineArgs, ServeOptions]:
    from cadence.config.server.serve_options import ServeOptions

    known = {flag.name for flag in serve_flags()}
    given = {name: value for name, value in vars(flags).items() if name in known}
    engine = {name: value for name, value in engine_options(flags).items() if name not in known}
    for name in SERVER_ONLY & engine.keys() - set(names()):
        given |= _in_place_of(FLAGS[name], engine.pop(name))
    if flags.model_tag and "model" in flags.config_only:
        engine["model"] = flags.model_tag  # by hand, while the config file names another
    if flags.model_tag and engine.setdefault("model", flags.model_tag) != flags.model_tag:
        raise ConfigError(f"two models: {flags.model_tag} and --model {engine['model']}", "model")
    if "model" not in engine and "served_model_name" not in flags.config_only:
        _check_names(given.get("served_model_name", ()))
    engine.setdefault("use_tqdm_on_load", sys.stderr.isatty())
    args = EngineArgs.from_options(**engine)
    shared = {name: getattr(args, name) for name in _SHARED}
    if not given.get("api_key") and env.api_key():
        given["api_key"] = [env.api_key()]
    for variable in peer_env.SWITCHES:
        if peer_env.is_on(env.peer_variables(), variable):
            given.setdefault(variable.removeprefix("VLLM_").lower(), True)
    for variable, (option, factor) in peer_env.LIMITS.items():
        if (limit := peer_env.count(env.peer_variables(), variable)) is not None:
            given.setdefault(option, limit * factor)
    given.setdefault("served_model_name", [args.model])
    return args, ServeOptions(**given, **shared)


def _check_names(served: Sequence[str]) -> None:
    """Where no model is given: `--served-model-name NAME MODEL` takes both words for names."""
    if len(served) > 1:
        words = " ".join(served)
        message = f"--served-model-name {words}: all of these are names, and no model is given; name the model first"
        raise ConfigError(message, "served_model_name")


def _in_place_of(flag: PeerFlag, value: Any) -> dict[str, Any]:
    """The server's option that a flag of vLLM's stands for; nothing, and a line in the log, where it has no effect."""
    if flag.means and not flag.asks_for_nothing(value):
        return {flag.means: value}
    if notice := flag.notice(value):
        logging.getLogger("cadence.config").warning("%s", notice)
    return {}


def serve_flags() -> list[Flag]:
    from cadence.config.server import serve_options as options

    hints = options.hints()
    return [
        Flag(field.name, hints[field.name], field.metadata["help"], field.metadata["choices"], _shown(field.default))
        for field in dataclasses.fields(options.ServeOptions)
        if field.name not in names()
    ]


def _add_list(group: argparse._ArgumentGroup, flag: Flag) -> None:
    """Several values after one flag, the flag several times, or a JSON list: they add up."""
    text = flag.help + (f" [{flag.default}]" if flag.default else "")
    group.add_argument(_spelled(flag.name), dest=flag.name, action=Extend, metavar="TEXT", help=text)


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(default: Any) -> Any:
    if isinstance(default, tuple):
        return ", ".join(default) or None
    return default
