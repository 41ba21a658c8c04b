"""The weights of one device: what there is to drop, and how they are filled again where they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.reference import ModelFiles
from cadence.core.contract.sleep import FIRST_WEIGHTS, WeightsState
from cadence.core.errors import WeightsError
from cadence.models.interface.build import BuildContext
from cadence.models.loader.load_head import Head
from cadence.models.loader.refill import Filled, Refill, droppable, refill_head
from cadence.models.registry import AnyModel


class DeviceWeights:
    """Of the target; a model that drafts keeps its own, but for a head that lies in the target's files."""

    def __init__(
        self, model: AnyModel, config: ModelConfig, load: LoadConfig, build: BuildContext, head: Head | None
    ) -> None:
        """build: of this stage. head: that drafts, and lies in the target's files"""
        self._first = Filled(model, config, load, build)
        self._head = head
        self._state = FIRST_WEIGHTS
        self._refill: Refill | None = None  # of `_state`, once it was needed

    @property
    def head(self) -> Head | None:
        return self._head

    @property
    def model(self) -> AnyModel:
        return self._first.model

    def droppable(self) -> list[torch.Tensor]:
        return droppable(self._first.model)

    def check(self, state: WeightsState) -> None:
        """Raises WeightsError where files do not fit. Nothing is written."""
        self._opened(state)

    def load(self, state: WeightsState) -> bool:
        """Patches that are new are written alone, where nothing else is. -> whether all addresses stayed"""
        new = [path for path in state.patches if path not in self._state.patches]
        if new and state.folder == self._state.folder:
            refill, stayed = self._refill or self._opened(self._state), True
            for path in new:
                refill.add(Path(path))
                stayed &= refill.write_newest()
            self._refill_head(state)
        else:
            refill = self._opened(state)
            stayed = refill.write()
            self._refill_head(state)
        self._state, self._refill = state, refill
        return stayed

    def reload(self) -> bool:
        """What was dropped -> whether all addresses stayed"""
        self._refill = self._opened(self._state)
        stayed = self._refill.write()
        self._refill_head(self._state)
        return stayed

    def _refill_head(self, state: WeightsState) -> None:
        if self._head is not None:
            refill_head(self._head, self._at(state.folder), [Path(path) for path in state.patches])

    def _opened(self, state: WeightsState) -> Refill:
        return Refill(self._at(state.folder), [Path(path) for path in state.patches])

    def _at(self, folder: str) -> Filled:
        """What the model is filled with where it has its weights from there."""
        if not folder:
            return self._first
        files = _files(folder)
        load = self._first.load
        if load.load_format == "dummy":
            load = replace(load, load_format="auto")
        return replace(self._first, config=replace(self._first.config, files=files), load=load)


def _files(reference: str) -> ModelFiles:
    """A folder of tensors needs no configuration: the model has one."""
    path = Path(reference).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(reference, path.parent, path)
    if not path.is_dir():
        raise WeightsError(f"{reference}: no such folder of weights, and no .gguf file")
    ggufs = list(path.glob("*.gguf"))
    return ModelFiles(reference, path, ggufs[0] if len(ggufs) == 1 and not list(path.glob("*.safetensors")) else None)
