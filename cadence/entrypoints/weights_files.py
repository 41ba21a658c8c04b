"""Weights for an engine that runs: a folder that holds all of them, or tensors by name, which go through files that
every rank can read, and the next engine too should this one die."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cadence.core.contract.sleep import FIRST_WEIGHTS, WeightsState
from cadence.core.errors import InvalidRequestError

PART_BYTES = 2 << 30  # of tensors that are in one file
_MEMORY = Path("/dev/shm")

Named = Iterable[tuple[str, Any]] | Mapping[str, Any]  # tensors of torch, by the names that checkpoints have them under
NewWeights = str | Path | Named


class WeightsFiles:
    """What the weights of an engine are. Files of tensors that count no more are deleted, and all at the end."""

    def __init__(self) -> None:
        self.state = FIRST_WEIGHTS
        self._names: dict[str, frozenset[str]] = {}  # of the tensors in each patch that is there
        self._end: weakref.finalize[Any, Any] | None = None
        self._folder: Path | None = None
        self._num_patches = 0

    def prepared(self, weights: NewWeights | None) -> WeightsState:
        """What they would be with these; None = those that there are, read again. `settle` must follow."""
        if weights is None:
            return self.state
        if isinstance(weights, str | Path):
            path = Path(weights).expanduser()
            if not path.exists():
                raise InvalidRequestError(f"weights: there is no {path}", "weights")
            return WeightsState(str(path.absolute()))
        return WeightsState(self.state.folder, (*self.state.patches, *self._write(weights)))

    def settle(self, wanted: WeightsState | None) -> None:
        """The engine has these now; None = what it had."""
        if wanted is not None:
            self.state = self._without_hidden(wanted)
        for patch in [patch for patch in self._names if patch not in self.state.patches]:
            shutil.rmtree(patch, ignore_errors=True)
            del self._names[patch]

    def close(self) -> None:
        if self._end is not None:
            self._end()

    def _without_hidden(self, state: WeightsState) -> WeightsState:
        """Without patches of which later ones have every tensor."""
        left: list[str] = []
        for patch in state.patches:
            left = [earlier for earlier in left if not self._names[earlier] <= self._names[patch]] + [patch]
        return WeightsState(state.folder, tuple(left))

    def _write(self, weights: Named) -> Iterator[str]:
        from safetensors.torch import save_file

        pairs = weights.items() if isinstance(weights, Mapping) else weights
        for part in _parts(pairs):
            self._num_patches += 1
            patch = self._place(sum(tensor.nbytes for tensor in part.values())) / f"{self._num_patches}"
            patch.mkdir()
            self._names[str(patch)] = frozenset(part)
            save_file(part, patch / "model.safetensors")
            yield str(patch)

    def _place(self, num_bytes: int) -> Path:
        if self._folder is None:
            roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * num_bytes + (1 << 20)
            self._folder = Path(tempfile.mkdtemp(prefix="cadence-weights-", dir=_MEMORY if roomy else None))
            self._end = weakref.finalize(self, shutil.rmtree, self._folder, True)
        return self._folder


def _parts(pairs: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """On the host, and apart from each other: one memory may not be in a file twice."""
    part: dict[str, Any] = {}
    for pair in pairs:
        name, tensor = _checked(pair)
        part[name] = tensor.detach().to("cpu").contiguous().clone()
        if sum(each.nbytes for each in part.values()) > PART_BYTES:
            yield part
            part = {}
    if part:
        yield part


def _checked(pair: Any) -> tuple[str, Any]:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) or not hasattr(pair[1], "detach"):
        raise InvalidRequestError("weights: a folder, a .gguf file, or pairs of a name and a tensor", "weights")
    return pair
