"""The argument parser of scripts for vLLM, for flags of their own and those of an engine."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cadence.config.command_line.argv import config_words, grouped, is_dotted, merged, normalise, repeated, split_config
from cadence.core.errors import ConfigError

LEVEL = "--optimization-level"

logger = logging.getLogger("cadence.config")


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse with flags in underscores or dashes, dotted keys that add up to an object, `-O3`, and `--config FILE`,
    over which flags given by hand win."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        tokens = list(sys.argv[1:] if args is None else args)
        for name in repeated(tokens):
            if "." in name or name == LEVEL:
                logger.warning("%s is given more than once (a duplicate): the last one counts", name)
        return super().parse_args(tokens, namespace)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        tokens = list(sys.argv[1:] if args is None else args)
        end = tokens.index("--") if "--" in tokens else len(tokens)
        words = self._rewritten(self._with_file(tokens[:end]))
        return super().parse_known_args([*words, *tokens[end:]], namespace)

    def check_port(self, value: str) -> int:
        try:
            port = int(value)
        except ValueError:
            raise argparse.ArgumentTypeError("a port is a whole number") from None
        if not 1024 <= port <= 65535:
            raise argparse.ArgumentTypeError("a port lies between 1024 and 65535")
        return port

    def _with_file(self, tokens: list[str]) -> list[str]:
        """What a config file says comes after the commands and before all flags, so that those win."""
        try:
            file, by_hand = split_config(tokens)
            from_file = config_words(Path(file)) if file else {}
        except ConfigError as error:
            self.error(str(error))
        start = next((n for n, token in enumerate(by_hand) if token.startswith("-")), len(by_hand))
        words = [word for words in from_file.values() for word in words if not self._is_default(word)]
        return [*by_hand[:start], *words, *by_hand[start:]]

    def _is_default(self, word: str) -> bool:
        """Whether it switches off what can only be switched on."""
        known = self._option_string_actions
        return word.startswith("--no-") and word not in known and "--" + word.removeprefix("--no-") in known

    def _rewritten(self, tokens: list[str]) -> list[str]:
        words: list[str] = []
        objects: dict[str, dict[str, Any]] = {}
        for group in grouped(tokens):
            if is_dotted(group[0]):
                flag, text = normalise(group)
                objects[flag] = merged(objects.get(flag, {}), json.loads(text))
            else:
                words += self._spelled(group)
        return words + [word for flag, value in objects.items() for word in (flag, json.dumps(value))]

    def _spelled(self, tokens: list[str]) -> list[str]:
        """A flag, perhaps with its value, as the parser knows it; what it does not know is left to argparse."""
        name = tokens[0].partition("=")[0]
        if name.startswith("-O") and LEVEL in self._option_string_actions:
            return [LEVEL] if tokens == ["-O"] else normalise(tokens)
        if not name.startswith("--") or name in self._option_string_actions:
            return tokens
        with_underscores = "--" + name[2:].replace("-", "_")
        if with_underscores in self._option_string_actions:
            return [with_underscores + tokens[0][len(name) :], *tokens[1:]]
        return normalise(tokens)
