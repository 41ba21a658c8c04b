"""A progress bar over prompts with tokens per second, or nothing at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from cadence.core.outputs import RequestOutput


class Progress(Protocol):
    def count_tokens(self, output: RequestOutput) -> None: ...

    def advance(self) -> None: ...


class SilentProgress:
    def count_tokens(self, output: RequestOutput) -> None:
        pass

    def advance(self) -> None:
        pass


class BarProgress:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._start = time.perf_counter()
        self._input_tokens = 0
        self._output_tokens = 0

    def count_tokens(self, output: RequestOutput) -> None:
        self._input_tokens += len(output.prompt_token_ids or ())
        self._output_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        self._bar.set_postfix_str(
            f"input: {self._input_tokens / elapsed:.1f} tok/s, output: {self._output_tokens / elapsed:.1f} tok/s",
            refresh=False,
        )

    def advance(self) -> None:
        self._bar.update(1)


@contextmanager
def open_progress(use_tqdm: bool | Callable[..., Any], total: int) -> Iterator[Progress]:
    """use_tqdm: True, False, or a class to use in tqdm's place."""
    make_bar = _tqdm() if use_tqdm is True else use_tqdm
    if not make_bar:
        yield SilentProgress()
        return
    with make_bar(total=total, desc="Processed prompts", dynamic_ncols=True) as bar:
        yield BarProgress(bar)


def _tqdm() -> Callable[..., Any] | None:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
