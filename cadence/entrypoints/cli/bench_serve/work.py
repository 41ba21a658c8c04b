"""What `cadence bench serve` sends: prompts drawn or read, written down as request bodies before the clock starts."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.remote.client import Remote, RemoteError

T = TypeVar("T")

CUSTOM_OUTPUT_LEN = 256
RANDOM_OUTPUT_LEN = 128
CHARACTERS_PER_TOKEN = 4  # where a server cannot count
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body back parent"
)
WORDS = _TEXT.split()
ALL_WORDS = " " + " ".join(WORDS)
DRAWN = ("random", "prefix_repetition")  # datasets without a file
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One prompt. `output_len` is the most tokens to generate."""

    prompt: str | list[int] | list[dict[str, Any]]  # text, token ids, or chat messages
    output_len: int


@dataclass(frozen=True, slots=True)
class RandomShape:
    input_len: int
    output_len: int
    range_ratio: float  # lengths lie in [len · (1 - ratio), len · (1 + ratio)]
    prefix_len: int  # tokens that all prompts begin with

    def __post_init__(self) -> None:
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"random_range_ratio={self.range_ratio} is not in [0, 1)", "random_range_ratio")

    def draw(self, length: int, dice: random.Random) -> int:
        low = math.floor(length * (1 - self.range_ratio))
        high = math.ceil(length * (1 + self.range_ratio))
        return max(1, dice.randint(low, high))


async def random_requests(
    remote: Remote, model: str, shape: RandomShape, chat: bool, dice: random.Random
) -> Iterator[BenchRequest]:
    """Endless. Exact lengths where the server tokenises for us and takes token ids; words, about as long, elsewhere."""
    return drawn_requests(PromptUnits.of(await tokenize(remote, model, ALL_WORDS), chat), shape, dice)


def drawn_requests(units: PromptUnits, shape: RandomShape, dice: random.Random) -> Iterator[BenchRequest]:
    prefix = units.draw(shape.prefix_len, dice)
    while True:
        drawn = units.draw(max(1, shape.draw(shape.input_len, dice)), dice)
        yield BenchRequest(units.prompt([*prefix, *drawn]), shape.draw(shape.output_len, dice))


@dataclass(frozen=True, slots=True)
class PromptUnits:
    """What prompts are drawn from: token ids, or words where a chat or the server takes none."""

    units: Sequence[int] | Sequence[str]
    per_token: float  # units
    chat: bool

    @classmethod
    def of(cls, ids: list[int], chat: bool) -> PromptUnits:
        """ids: of `ALL_WORDS`; none where the server cannot tell"""
        if ids and not chat:
            return cls(ids, 1.0, chat)
        return cls(WORDS, len(WORDS) / len(ids) if ids else 1.0, chat)

    def draw(self, num_tokens: int, dice: random.Random) -> list[Any]:
        """About so many tokens; some, unless that is 0."""
        count = max(1, round(num_tokens * self.per_token)) if num_tokens else 0
        return dice.choices(self.units, k=count)

    def prompt(self, drawn: list[Any]) -> str | list[int] | list[dict[str, Any]]:
        if self.units is not WORDS:
            return drawn
        return _as_messages(" ".join(drawn)) if self.chat else " ".join(drawn)


@dataclass(frozen=True, slots=True)
class PrefixRepetition:
    """Prompts of which many begin with one of a few prefixes. Lengths in tokens."""

    prefix_len: int
    suffix_len: int
    num_prefixes: int
    output_len: int

    def __post_init__(self) -> None:
        for name in ("prefix_len", "suffix_len", "num_prefixes", "output_len"):
            if getattr(self, name) < 1:
                field = f"prefix_repetition_{name}"
                raise ConfigError(f"{field}={getattr(self, name)} is not at least 1", field)

    def requests(self, units: PromptUnits, count: int, shuffled: bool, dice: random.Random) -> list[BenchRequest]:
        """As even a number for each prefix as can be, in a random order unless told otherwise."""
        prefixes = [units.draw(self.prefix_len, dice) for _ in range(self.num_prefixes)]
        begun = sorted(range(count), key=lambda number: number % self.num_prefixes)
        requests = []
        for number in begun:
            drawn = [*prefixes[number % self.num_prefixes], *units.draw(self.suffix_len, dice)]
            requests.append(BenchRequest(units.prompt(drawn), self.output_len))
        if shuffled:
            dice.shuffle(requests)
        return requests


def models(model: str, adapters: Sequence[str], assignment: str, count: int, dice: random.Random) -> Iterator[str]:
    """The name that each of so many requests asks for."""
    for number in range(count):
        if not adapters:
            yield model
        elif assignment == "round-robin":
            yield adapters[number % len(adapters)]
        else:
            yield dice.choice(adapters)


def extra_fields(flags: argparse.Namespace, chat: bool) -> dict[str, Any]:
    """What flags add to every request; --extra-body wins."""
    fields = {name: getattr(flags, name) for name in _SAMPLING if getattr(flags, name) is not None}
    if flags.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": flags.logprobs} if chat else {"logprobs": flags.logprobs}
    if flags.chat_template_kwargs:
        fields["chat_template_kwargs"] = flags.chat_template_kwargs
    if flags.ignore_eos:
        fields["ignore_eos"] = True
    return {**fields, **flags.extra_body}


async def tokenize(remote: Remote, model: str, text: str) -> list[int]:
    """Token ids by the server's /tokenize; none where it has no such route."""
    try:
        answer = await remote.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    except RemoteError as error:
        if error.status in (0, 401, 403):
            raise
        return []
    tokens = answer.get("tokens")
    return tokens if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else []


def custom_requests(path: Path, output_len: int, chat: bool) -> list[BenchRequest]:
    """JSONL: {"prompt": …} or {"messages": […]}, and "output_tokens" or "max_tokens" where a line has its own."""
    requests: list[BenchRequest] = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        entry = _json(line, f"{path}:{number}")
        prompt = entry.get("messages") if chat and "messages" in entry else entry.get("prompt")
        if not prompt or not isinstance(prompt, str | list):
            raise ConfigError(f"{path}:{number}: no prompt", "dataset_path")
        if chat and isinstance(prompt, str):
            prompt = _as_messages(prompt)
        own = entry.get("output_tokens") or entry.get("max_tokens")
        requests.append(BenchRequest(prompt, output_len or (int(own) if own else CUSTOM_OUTPUT_LEN)))
    return requests


async def sharegpt_requests(
    remote: Remote, model: str, path: Path, output_len: int, chat: bool, count: int, dice: random.Random | None
) -> list[BenchRequest]:
    """First questions of conversations; as many tokens as their answers have, unless told otherwise."""
    pairs = first_exchanges(path)
    if dice is not None:
        dice.shuffle(pairs)
    requests: list[BenchRequest] = []
    for question, answer in pairs[:count]:
        length = output_len or len(await tokenize(remote, model, answer)) or len(answer) // CHARACTERS_PER_TOKEN
        requests.append(BenchRequest(_as_messages(question) if chat else question, max(1, length)))
    return requests


def first_exchanges(path: Path) -> list[tuple[str, str]]:
    """Of a ShareGPT file: the first question of each conversation that has one, and its answer."""
    return [pair for entry in _json_list(path) if (pair := _first_exchange(entry))]


def _first_exchange(entry: Any) -> tuple[str, str] | None:
    turns: Any = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    texts: list[Any] = [turn.get("value") for turn in turns or () if isinstance(turn, dict)]
    if len(texts) < 2 or not all(isinstance(text, str) and text for text in texts[:2]):
        return None
    return texts[0], texts[1]


def repeated(requests: list[T], count: int, path: Path) -> list[T]:
    if not requests:
        raise ConfigError(f"{path} holds no prompts", "dataset_path")
    return list(itertools.islice(itertools.cycle(requests), count))


def with_ids(bodies: Sequence[bytes], prefix: str) -> list[bytes]:
    """With `request_id`s, where there is a prefix for them."""
    if not prefix:
        return list(bodies)
    return [
        json.dumps({**json.loads(body), "request_id": f"{prefix}{number}"}, separators=(",", ":")).encode()
        for number, body in enumerate(bodies)
    ]


def request_body(request: BenchRequest, model: str, chat: bool, extra: Mapping[str, Any]) -> bytes:
    """`extra` wins over what is set here."""
    fields: dict[str, Any] = {
        "model": model,
        "messages" if chat else "prompt": request.prompt,
        "max_completion_tokens" if chat else "max_tokens": request.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _as_messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "dataset_path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", "dataset_path") from None


def _json(text: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise ConfigError(f"{place}: not a JSON object", "dataset_path")
    return entry


def _json_list(path: Path) -> list[Any]:
    try:
        content = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", "dataset_path") from None
    if not isinstance(content, list):
        raise ConfigError(f"{path}: not a list of conversations", "dataset_path")
    return content
