"""`cadence serve`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cadence.config import env
from cadence.config.args import EngineArgs, names
from cadence.config.cli import Flag, Parser, add_engine_flags, add_flag, engine_options
from cadence.core.errors import CadenceError, ConfigError

if TYPE_CHECKING:
    from cadence.entrypoints.openai.options import ServeOptions

# Flags of vLLM's server that mean nothing here: flag -> why. None of them is ignored.
REFUSED = {
    "api_server_count": "one process serves HTTP; the engine has a process of its own",
    "headless": "the server and its engine run on one machine",
    "lora_modules": "LoRA adapters are not in this version; merge the adapter into the weights",
    "tool_parser_plugin": "code from a file is not run; `cadence serve --help` lists the tool call parsers",
    "reasoning_parser_plugin": "code from a file is not run; `cadence serve --help` lists the reasoning parsers",
    "tool_server": "tools are called by the client",
    "middleware": "code named by a flag is not run",
    "log_config_file": "logs are lines on stderr; set the level with CADENCE_LOG_LEVEL",
    "max_log_len": "prompts are never logged",
    "enable_log_outputs": "outputs are never logged",
    "enable_log_deltas": "outputs are never logged",
    "log_error_stack": "errors of requests are the client's; bugs are logged with their stack always",
    "enable_server_load_tracking": "/load always counts",
    "enable_tokenizer_info_endpoint": "use /tokenize and /detokenize",
    "enable_per_request_metrics": "timings are on /metrics",
    "tokens_only": "every endpoint is always served",
    "fingerprint_mode": "system_fingerprint names the version",
    "fingerprint_value": "system_fingerprint names the version",
    "enable_ssl_refresh": "restart the server to load a new certificate",
    "h11_max_incomplete_event_size": "HTTP is read by httptools; use --max-header-bytes",
    "h11_max_header_count": "HTTP is read by httptools; use --max-header-count",
    "enable_offline_docs": "/openapi.json needs no network; /docs does",
    "disable_access_log_for_endpoints": "the access log is off unless --uvicorn-log-level is info",
    "stream_interval": "requests may set stream_interval themselves",
    "renderer_num_workers": "long prompts are tokenised beside the event loop as they come",
    "cohere_is_reasoning_model": "Cohere's API is not served",
    "cohere_format": "Cohere's API is not served",
}
_SHORT = {"api_server_count": "-asc"}
_SHARED = ("chat_template", "trust_request_chat_template")  # options of the engine that the routes ask for too


def build_parser() -> Parser:
    parser = Parser("cadence serve", "Serve a model over HTTP, as OpenAI does.", positional="[MODEL]")
    parser.conflict_handler = "resolve"  # the server's flags take the place of the engine's refusals of them
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="alias, folder, .gguf file, or hub id")
    add_engine_flags(parser)
    group = parser.add_argument_group("server")
    for flag in serve_flags():
        if flag.is_list:
            _add_list(group, flag)
        else:
            add_flag(group, flag)
    for name, why in REFUSED.items():
        spellings = [_spelled(name), *([_SHORT[name]] if name in _SHORT else [])]
        group.add_argument(*spellings, action=_Refuse, why=why, nargs="?", help=argparse.SUPPRESS)
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    args, options = read_flags(flags)
    try:
        from cadence.entrypoints.openai.server import run_server
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'cadence-llm[serve]'", "serve") from None
    if options.enable_log_requests:
        logging.getLogger("cadence.server").setLevel(logging.INFO)
    try:
        return run_server(args, options)
    except CadenceError as error:
        print(f"cadence serve: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


def read_flags(flags: argparse.Namespace) -> tuple[EngineArgs, ServeOptions]:
    from cadence.entrypoints.openai.options import ServeOptions

    known = {flag.name for flag in serve_flags()}
    given = {name: value for name, value in vars(flags).items() if name in known}
    engine = {name: value for name, value in engine_options(flags).items() if name not in known}
    if flags.model_tag and engine.setdefault("model", flags.model_tag) != flags.model_tag:
        raise ConfigError(f"two models: {flags.model_tag} and --model {engine['model']}", "model")
    engine.setdefault("use_tqdm_on_load", sys.stderr.isatty())
    args = EngineArgs.from_options(**engine)
    shared = {name: getattr(args, name) for name in _SHARED}
    if not given.get("api_key") and env.api_key():
        given["api_key"] = [env.api_key()]
    given.setdefault("served_model_name", [args.model])
    return args, ServeOptions(**given, **shared)


def serve_flags() -> list[Flag]:
    from cadence.entrypoints.openai import options

    hints = options.hints()
    return [
        Flag(field.name, hints[field.name], field.metadata["help"], field.metadata["choices"], _shown(field.default))
        for field in dataclasses.fields(options.ServeOptions)
        if field.name not in names()
    ]


def _add_list(group: argparse._ArgumentGroup, flag: Flag) -> None:
    """Several values after one flag, the flag several times, or a JSON list: they add up."""
    text = flag.help + (f" [{flag.default}]" if flag.default else "")
    group.add_argument(_spelled(flag.name), action=_Extend, nargs="+", metavar="TEXT", help=text)


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(default: Any) -> Any:
    if isinstance(default, tuple):
        return ", ".join(default) or None
    return default


class _Extend(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "default": argparse.SUPPRESS})

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        found: list[str] = [*getattr(namespace, self.dest, ())]
        for value in values:
            found += self._items(value)
        setattr(namespace, self.dest, found)

    def _items(self, value: str) -> list[str]:
        if not value.startswith("["):
            return [value]
        try:
            return [str(item) for item in json.loads(value)]
        except ValueError:
            raise argparse.ArgumentError(self, f"{value!r} is not a JSON list") from None


class _Refuse(argparse.Action):
    def __init__(self, why: str, **options: Any) -> None:
        super().__init__(**options)
        self._why = why

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        flag = rest[-1] or self.option_strings[0]
        parser.error(f"{flag} cannot be honoured: {self._why}")
