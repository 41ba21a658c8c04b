"""Model files that lie: values no field can have, and files that are not what their names say."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from cadence.config.args import EngineArgs
from cadence.engine.source import check_vocabulary, find_source
from cadence.executor.factory import device_caps
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.loader import load_model

SIZES: list[Any] = [0, -1, 3, 10**12, 2**62, 10**400]  # one of them may be true
NOT_NUMBERS: list[Any] = ["64", "x" * 100_000, [], ["a"], [None] * 1000, {"a": {"b": 1}}]
NUMBERS: list[Any] = [1.5, 1e308, float("nan"), float("-inf"), True, None]
LIES = [*SIZES, *NOT_NUMBERS, *NUMBERS]
PARTS = 3  # in which every field has been told every lie; in one of them, some of each kind

DEEP = 100_000


def lies_of(part: int, number: int) -> list[Any]:
    """Of field `number`, in one of PARTS; the fields of one part have all of them among them."""
    return LIES[(part + number) % PARTS :: PARTS]


def damages(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """A file's bytes, spoiled."""
    yield "empty", b""
    yield "zeros", bytes(1 << 20)
    yield "junk", random.Random(5).randbytes(5 << 20)
    yield "megabytes of lists", b"[" + b"[]," * (3 << 20) + b"[]]"
    yield "truncated", raw[: len(raw) // 2]
    yield "one byte short", raw.rstrip()[:-1]
    yield "deep lists", b"[" * DEEP
    yield "deep objects", b'{"a":' * DEEP
    yield "deep and closed", b'{"architectures":' + b"[" * DEEP + b"]" * DEEP + b"}"
    yield "not UTF-8", raw.replace(b'"', b'"\xff', 1)
    yield "many digits", b'{"hidden_size": ' + b"9" * 10_000 + b"}"
    for content in (b"null", b"[]", b'"text"', b"1", b"{}", b"{'a': 1}", b'{"a": 1,}', b"\xef\xbb\xbf{}"):
        yield f"{content!r}", content


def replacements(path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """What may lie where a file should: (name, how to put it there)."""
    yield "directory", path.mkdir
    yield "pipe", lambda: os.mkfifo(path)
    yield "link to nothing", lambda: path.symlink_to(path.with_name("nowhere"))
    yield "link to a device", lambda: path.symlink_to("/dev/zero")
    yield "link to itself", lambda: path.symlink_to(path)


def copy_with(source: Path, target: Path, file: str, content: bytes) -> Path:
    """A model's directory in which one file has other bytes; all else is linked anew if an earlier call changed it."""
    if not target.exists():
        fresh_copy(source, target)
    for changed in [path for path in target.iterdir() if not path.is_symlink()]:
        changed.unlink()
        if (source / changed.name).exists():
            changed.symlink_to(source / changed.name)
    (target / file).unlink(missing_ok=True)
    (target / file).write_bytes(content)
    return target


def fresh_copy(source: Path, target: Path) -> Path:
    """Of links to the files; nobody writes into them."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).symlink_to(path)
    return target


def json_with(raw: dict[str, Any], where: tuple[str, ...], value: Any) -> bytes:
    """A file in which the field at the path `where` has another value."""
    changed = json.loads(json.dumps(raw))
    section = changed
    for name in where[:-1]:
        section = section[name]
    section[where[-1]] = value
    return json.dumps(changed).encode()


def load(model: Path, load_format: str = "auto", **options: Any) -> None:
    """Everything that reads a model's files, without an engine around it."""
    args = EngineArgs(model=str(model), load_format=load_format, max_num_seqs=4, **options)
    source = find_source(args)
    caps = device_caps("cpu")
    config = source.resolve(args, caps)
    length, memory = config.model.max_model_len, caps.total_memory
    build = BuildContext(torch.float32, torch.device("cpu"), ReferenceOps(), length, memory)
    check_vocabulary(source.load_tokenizer(skip=False), load_model(config.model, config.load, build).vocab_size)


def load_text(model: Path) -> None:
    """The tokenizer alone."""
    find_source(EngineArgs(model=str(model))).load_tokenizer(skip=False)
