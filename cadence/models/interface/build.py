"""What every module needs to be built, and nothing of what it computes with later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.stage import ALL_LAYERS, Stage


class ConfigView(Protocol):
    """A model's configuration as Hugging Face names it: `HFConfig`, or a plain dict of one of its sections."""

    def __getitem__(self, key: str) -> Any: ...

    def get(self, key: str, default: Any = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class WithDefaults:
    """A configuration whose missing keys have a family's defaults. A key that is there and null stays null."""

    hf: ConfigView
    defaults: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.hf.get(key, self.defaults[key]) if key in self.defaults else self.hf[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.hf.get(key, self.defaults.get(key, default))


@dataclass(frozen=True, slots=True)
class WithChanges:
    """A configuration some of whose keys have other values than the file says."""

    hf: ConfigView
    changes: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.changes[key] if key in self.changes else self.hf[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.changes[key] if key in self.changes else self.hf.get(key, default)


@dataclass(frozen=True, slots=True)
class BuildContext:
    dtype: torch.dtype  # of activations; of weights too, where they are not packed
    device: torch.device
    ops: Ops  # whose form matrices take; what computes comes with every forward
    max_model_len: int  # tokens; positions 0 .. max_model_len - 1 are served
    memory: int = 2**63  # bytes of the device: a model that needs more is not built
    ranks: Collectives = ONE_RANK  # that share each layer, and which of them this is
    stage: Stage = ALL_LAYERS  # the layers that are built
    expert_ranks: Collectives = ONE_RANK  # that have whole experts each: the ranks, or engines

    @property
    def whole_experts(self) -> bool:
        """Of the experts of a layer some are here, instead of a part of every one."""
        return self.expert_ranks.size > 1

    @property
    def bias_dtype(self) -> torch.dtype:
        """Packed products add biases before they round."""
        return torch.float32 if self.ops.packs else self.dtype

    def window(self, sliding_window: int | None) -> int:
        """Tokens a query sees, itself included; 0 = all. A window no sequence can outgrow is none."""
        return 0 if sliding_window is None or sliding_window >= self.max_model_len else sliding_window
