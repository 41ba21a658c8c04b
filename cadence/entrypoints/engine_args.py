"""`EngineArgs` and `AsyncEngineArgs` as scripts for vLLM write them: also with the names that mean nothing here, and
with flags for a parser of the script's own."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, Self

from cadence.config import args as engine_args
from cadence.config.cli import add_engine_flags
from cadence.config.command_line import values
from cadence.config.engine_config import EngineConfig
from cadence.config.peers import peer_table


class EngineArgs(engine_args.EngineArgs):
    """The options of an engine. A name without a meaning here is refused with its reason, or accepted and named in
    the log, as `LLM(...)` does; what was given under it can be read back."""

    __slots__ = ("_others",)

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        checked = engine_args.EngineArgs.from_options(model=model, **options)
        super().__init__(**{name: getattr(checked, name) for name in engine_args.names()})
        self._others = {name: value for name, value in options.items() if name not in engine_args.names()}

    def __getattr__(self, name: str) -> Any:
        """Options of vLLM without a field here."""
        flag = peer_table.FLAGS.get(name)
        if flag is None or name in peer_table.SERVER_ONLY:
            raise AttributeError(f"EngineArgs has no option {name}")
        return self._others.get(name, flag.neutral[0] if flag.neutral else None)

    def __setattr__(self, name: str, value: Any) -> None:
        """One of vLLM's without a field here is refused or named in the log, as if it had been given at once."""
        if name == "_others" or name in engine_args.names():
            super().__setattr__(name, value)
            return
        engine_args.EngineArgs.from_options(model=self.model, **{name: value})
        self._others[name] = value

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds every engine option as a flag, with its default, so that the parsed namespace has them all."""
        add_engine_flags(parser)
        hints = engine_args.hints()
        defaults = _defaults()
        for action in parser._actions:
            if action.dest in defaults and action.default is argparse.SUPPRESS:
                action.default = defaults[action.dest]
            if action.dest in hints and type(action) is argparse._StoreAction:
                action.type = _reader(action.dest, hints[action.dest])
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """From a namespace that may hold the script's own flags too."""
        known = {*engine_args.names(), *(flag.name for flag in peer_table.not_here())}
        return cls(**{name: value for name, value in vars(args).items() if name in known})

    def create_engine_config(self, *_: object, **__: object) -> EngineConfig:
        """The options resolved for this machine. Reads the model's description; loads no weights."""
        from cadence.engine.build import resolved_config

        return resolved_config(self)


class AsyncEngineArgs(EngineArgs):
    """The same: an engine in a process of its own takes no other options."""

    __slots__ = ()

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser, async_args_only: bool = False) -> argparse.ArgumentParser:
        return parser if async_args_only else EngineArgs.add_cli_args(parser)


def _defaults() -> dict[str, Any]:
    plain = engine_args.EngineArgs()
    own = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    return {flag.name: flag.neutral[0] if flag.neutral else None for flag in peer_table.not_here()} | own


def _reader(name: str, hint: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return -1 if (name, text.lower()) == ("max_model_len", "auto") else values.coerce(name, hint, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read
