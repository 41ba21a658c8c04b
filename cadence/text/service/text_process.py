"""A process for long texts and untrusted templates, which may be slow, run out of memory or crash.

`python -m cadence.text.service.text_process`, as `cadence.process` says. One job at a time; an alarm ends one that its
parent should have ended; beyond its memory limit allocations fail.
"""

from __future__ import annotations

import gc
import resource
import signal
from pathlib import Path

import msgspec

from cadence.config.reference import ModelFiles
from cadence.core.errors import InvalidRequestError, TemplateError
from cadence.process.framing import packed_frame, receive
from cadence.process.parent import open_wire
from cadence.process.sandbox import confine, limit, limit_memory, memory_bytes
from cadence.text.chat_template import ChatRequest
from cadence.text.chats import Chats, chats_for
from cadence.text.load import tokenizer_for
from cadence.text.service.text_jobs import (
    Answer,
    Decode,
    Decoded,
    Encode,
    Encoded,
    Failed,
    Job,
    Kept,
    LoadTokenizer,
    Ready,
    RenderChat,
    packed,
    to_process,
    unpacked,
)
from cadence.text.tokenizer import Tokenizer

NICENESS = 5  # the engine goes first, but a job comes to its end beside a busy one
GRACE_S = 2.0  # the parent kills at the deadline; where there is none, the alarm does it this much later
MOST_DESCRIPTORS = 16
MAX_GROWTH = 256 * 2**20  # bytes of memory kept after a job; beyond, the process is replaced


def main() -> None:
    wire = open_wire()
    first = to_process.decode(receive(wire))
    assert isinstance(first, LoadTokenizer)
    worker = TextWorker(first)
    gc.freeze()
    confine(NICENESS)  # not before: on a busy machine the start alone would take a minute
    limit(resource.RLIMIT_NOFILE, MOST_DESCRIPTORS)
    limit_memory(first.memory_bytes)
    wire.sendall(packed_frame(Ready()))
    while data := receive(wire):
        job = to_process.decode(data)
        assert not isinstance(job, LoadTokenizer)
        signal.setitimer(signal.ITIMER_REAL, job.seconds + GRACE_S)  # SIGALRM ends the process
        wire.sendall(packed_frame(worker.answer(job)))
        signal.setitimer(signal.ITIMER_REAL, 0)


class TextWorker:
    def __init__(self, what: LoadTokenizer) -> None:
        files = ModelFiles(what.name, Path(what.directory), Path(what.gguf) if what.gguf else None)
        self._tokenizer: Tokenizer = tokenizer_for(files, what.mode)
        self._chats: Chats = chats_for(self._tokenizer, what.escape_control_tokens)
        self._start_size = memory_bytes()[1]

    def answer(self, job: Job) -> Answer:
        try:
            answer = self._perform(job)
        except MemoryError:
            return Failed("", "", out_of_memory=True)
        except TemplateError as error:
            return Failed(str(error), error.field, isinstance(error.__cause__, MemoryError))
        except InvalidRequestError as error:
            return Failed(str(error), error.field)
        grown = memory_bytes()[1] > self._start_size + MAX_GROWTH
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


if __name__ == "__main__":
    main()
