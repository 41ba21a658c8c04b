"""A process for long texts and untrusted templates, which may be slow, run out of memory or crash.

`python -m cadence.text.text_process <descriptor of a socket>`. One job at a time. It leaves when the socket closes; an
alarm ends a job that outlives its parent; beyond its memory limit allocations fail.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import msgspec

from cadence.config.reference import ModelFiles
from cadence.core.errors import InvalidRequestError, TemplateError
from cadence.text.chat_template import ChatRequest
from cadence.text.chats import Chats, chats_for
from cadence.text.load import tokenizer_for
from cadence.text.text_jobs import (
    LENGTH_BYTES,
    Answer,
    Decode,
    Decoded,
    Encode,
    Encoded,
    Failed,
    FromProcess,
    Job,
    Kept,
    LoadTokenizer,
    Ready,
    RenderChat,
    ToProcess,
    frame,
    packed,
    to_process,
    unpacked,
)
from cadence.text.tokenizer import Tokenizer

NICENESS = 5  # the engine goes first, but a job comes to its end beside a busy one
GRACE_S = 2.0  # the parent kills at the deadline; where there is none, the alarm does it this much later
MAX_GROWTH = 256 * 2**20  # bytes of memory kept after a job; beyond, the process is replaced


def main() -> None:
    wire = socket.socket(fileno=int(sys.argv[1]))
    first = _read(wire)
    assert isinstance(first, LoadTokenizer)
    worker = TextWorker(first)
    gc.freeze()
    os.nice(NICENESS)  # not before: on a busy machine the start alone would take a minute
    _limit_resources(first.memory_bytes)
    _send(wire, Ready())
    while (job := _read(wire)) is not None:
        assert not isinstance(job, LoadTokenizer)
        signal.setitimer(signal.ITIMER_REAL, job.seconds + GRACE_S)  # SIGALRM ends the process
        _send(wire, worker.answer(job))
        signal.setitimer(signal.ITIMER_REAL, 0)


class TextWorker:
    def __init__(self, what: LoadTokenizer) -> None:
        files = ModelFiles(what.name, Path(what.directory), Path(what.gguf) if what.gguf else None)
        self._tokenizer: Tokenizer = tokenizer_for(files)
        self._chats: Chats = chats_for(self._tokenizer, what.escape_control_tokens)
        self._start_size = _resident_bytes()

    def answer(self, job: Job) -> Answer:
        try:
            answer = self._perform(job)
        except MemoryError:
            return Failed("", "", out_of_memory=True)
        except TemplateError as error:
            return Failed(str(error), error.field, isinstance(error.__cause__, MemoryError))
        except InvalidRequestError as error:
            return Failed(str(error), error.field)
        grown = _resident_bytes() > self._start_size + MAX_GROWTH
        return msgspec.structs.replace(answer, retire=True) if grown else answer

    def _perform(self, job: Job) -> Encoded | Decoded:
        if isinstance(job, Encode):
            ids = self._tokenizer.encode(job.text, job.add_special_tokens)
            return _cut(ids, job.kept, job.max_tokens)
        if isinstance(job, Decode):
            text = self._tokenizer.decode(unpacked(job.ids), job.skip_special_tokens)
            if len(text.encode()) > job.max_bytes:
                raise InvalidRequestError(f"the text has more than {job.max_bytes} bytes", "tokens")
            return Decoded(text)
        return self._render(job)

    def _render(self, job: RenderChat) -> Encoded:
        chat = ChatRequest(**msgspec.json.decode(job.chat))
        rendered = self._chats.render(chat, job.template)
        text = self._chats.text(rendered)
        if job.context:
            self._tokenizer.check_fits(text, job.context, job.field)
        if job.check_only:
            return Encoded(b"", 0)
        encoded = _cut(self._chats.encode(rendered, job.add_special_tokens), job.kept, job.max_tokens)
        return msgspec.structs.replace(encoded, text=text)


def _cut(ids: list[int], kept: Kept, max_tokens: int) -> Encoded:
    some = ids[slice(*kept)]
    if len(some) > max_tokens:
        raise InvalidRequestError(f"the text has {len(some)} tokens; at most {max_tokens} are given back", "")
    return Encoded(packed(some), len(ids))


def _limit_resources(memory_bytes: int) -> None:
    """No core files, no files at all, few descriptors, and this much memory on top of what it has now."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_FSIZE, 0)
    _set_limit(resource.RLIMIT_NOFILE, 16)
    if size := _statm()[0]:
        _set_limit(resource.RLIMIT_AS, size + memory_bytes)


def _set_limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _resident_bytes() -> int:
    return _statm()[1]


def _statm() -> tuple[int, int]:
    """Bytes of address space and of resident memory; (0, 0) where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, 0
    size = resource.getpagesize()
    return int(pages[0]) * size, int(pages[1]) * size


def _read(wire: socket.socket) -> ToProcess | None:
    """None when the other side has closed."""
    length = _receive(wire, LENGTH_BYTES)
    return to_process.decode(_receive(wire, int.from_bytes(length, "little"))) if length else None


def _receive(wire: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes; none when the other side has closed."""
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        received = wire.recv_into(rest)
        if not received:
            return bytearray()
        rest = rest[received:]
    return data


def _send(wire: socket.socket, message: FromProcess) -> None:
    wire.sendall(frame(message))


if __name__ == "__main__":
    main()
