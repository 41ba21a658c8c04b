"""llama.cpp through the C interface of llama-cpp-python, with a small continuous-batching loop around it.

Options: flash_attention (-1 = llama.cpp decides, 0 = off), slots.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.driver import Run, drive
from benchmarks.peers.workloads import Request

_BATCH = 2048  # tokens of one call
_REQUEST_TILES = (158, 0x1023, 18)  # on x86: arch_prctl(ARCH_REQ_XCOMP_PERM, tile data)


@dataclass(slots=True)
class Stream:
    """One request, in a slot of the context."""

    index: int
    slot: int
    fed: int = 0  # tokens of the prompt handed over
    position: int = 0
    newest: int = 0
    given: int = 0


class LlamaCpp:
    def __init__(self, args: argparse.Namespace) -> None:
        import llama_cpp

        self._c: Any = llama_cpp
        self._threads = args.threads
        self._flash = int(args.options.get("flash_attention", -1))
        self._slots = int(args.options.get("slots", 64))
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(args.model.encode(), parameters)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._context: Any = None
        self._shape = (0, 0)

    def run(self, work: Sequence[Request]) -> list[int]:
        slots = min(self._slots, len(work))
        longest = max(len(request.prompt) + request.num_output for request in work)
        self._open_context(slots, 1280 if slots == 1 else -(-longest // 256) * 256)
        free, waiting = list(range(slots)), list(range(len(work)))
        active: list[Stream] = []
        given = [0] * len(work)
        while waiting or active:
            while waiting and free:
                active.append(Stream(waiting.pop(0), free.pop()))
            self._step(work, active)
            for sequence in [one for one in active if one.given == work[one.index].num_output]:
                self._c.llama_memory_seq_rm(self._memory, sequence.slot, -1, -1)
                given[sequence.index] = sequence.given
                free.append(sequence.slot)
                active.remove(sequence)
        return given

    def _open_context(self, slots: int, length: int) -> None:
        if self._shape != (slots, length):
            if self._context:
                self._c.llama_free(self._context)
            self._context, self._shape = self._new_context(slots, length), (slots, length)
        self._memory = self._c.llama_get_memory(self._context)
        self._c.llama_memory_clear(self._memory, False)

    def _new_context(self, slots: int, length: int) -> Any:
        parameters = self._c.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = slots * length, slots
        parameters.n_batch, parameters.n_ubatch = _BATCH, 512
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.kv_unified = False
        parameters.flash_attn_type = self._flash
        context = self._c.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError("llama.cpp made no context")
        return context

    def _step(self, work: Sequence[Request], active: list[Stream]) -> None:
        """One call: a token of each sequence that decodes, then as much of the prompts as fits."""
        import numpy as np

        self._batch.n_tokens = 0
        read = []  # (sequence, place in the batch)
        for sequence in active:
            if sequence.fed == len(work[sequence.index].prompt):
                read.append((sequence, self._put(sequence, sequence.newest, True)))
        for sequence in active:
            prompt = work[sequence.index].prompt
            while sequence.fed < len(prompt) and self._batch.n_tokens < _BATCH:
                last = sequence.fed == len(prompt) - 1
                place = self._put(sequence, prompt[sequence.fed], last)
                sequence.fed += 1
                if last:
                    read.append((sequence, place))
        if status := self._c.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode gave {status}")
        for sequence, place in read:
            logits_np = np.ctypeslib.as_array(self._c.llama_get_logits_ith(self._context, place), (self._vocab,))
            sequence.newest = int(logits_np.argmax())
            sequence.given += 1

    def _put(self, sequence: Stream, token: int, wants_logits: bool) -> int:
        batch, place = self._batch, self._batch.n_tokens
        batch.token[place], batch.pos[place] = token, sequence.position
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence.slot
        batch.logits[place] = wants_logits
        sequence.position += 1
        batch.n_tokens = place + 1
        return place


def open_engine(args: argparse.Namespace) -> tuple[Run, dict[str, str]]:
    if platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(*_REQUEST_TILES)
    engine = LlamaCpp(args)
    import llama_cpp

    return engine.run, {
        "llama-cpp-python": llama_cpp.__version__,
        "built_for": llama_cpp.llama_print_system_info().decode(),
    }


if __name__ == "__main__":
    drive("llama.cpp", open_engine)
