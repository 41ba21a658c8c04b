"""Which of a model's layers a device has: all, or those of one stage of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.links import ONE_STAGE, StageLinks

Layer = TypeVar("Layer", bound=nn.Module)


class Absent(nn.Module):
    """A part of the model that another stage has."""


@dataclass(frozen=True, slots=True)
class Stage:
    links: StageLinks = ONE_STAGE
    partition: tuple[int, ...] = ()  # layers of each stage; () = as even as can be
    keeps_embedding: bool = False  # the last stage too: for one who drafts there

    @property
    def is_first(self) -> bool:
        return self.links.stage == 0

    @property
    def is_last(self) -> bool:
        return self.links.is_last

    @property
    def is_all(self) -> bool:
        return self.links.count == 1

    def own(self, num_layers: int) -> range:
        """Of so many layers, those of this stage."""
        counts = self.partition or even_partition(num_layers, self.links.count)
        if len(counts) != self.links.count or sum(counts) != num_layers or min(counts) < 1:
            raise ConfigError(
                f"{self.links.count} stages are to have the model's {num_layers} layers, at least one each; "
                f"pp_layer_partition is {','.join(map(str, self.partition)) or 'not given'}",
                "pp_layer_partition" if min(counts) else "pipeline_parallel_size",
            )
        first = sum(counts[: self.links.stage])
        return range(first, first + counts[self.links.stage])

    def layers(self, num_layers: int, make: Callable[[int], Layer]) -> list[Layer | Absent]:
        """Those of this stage, in their places among all."""
        own = self.own(num_layers)
        return [make(index) if index in own else Absent() for index in range(num_layers)]


ALL_LAYERS = Stage()


def own_layers(layers: Sequence[nn.Module]) -> range:
    """Places of those that are here, which follow each other."""
    own = [index for index, layer in enumerate(layers) if not isinstance(layer, Absent)]
    return range(own[0], own[-1] + 1) if own else range(0)


def even_partition(num_layers: int, num_stages: int, head_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each stage, such that all take about as long: beside its layers the last one computes the head, which
    is worth so many. Where layers do not come out even, the first stages have more."""
    last = round((num_layers + head_layers) / num_stages - head_layers)
    last = min(max(last, 1), num_layers // num_stages)
    if num_stages == 1 or last < 1:
        return (num_layers,) if num_stages == 1 else (0,) * num_stages
    each, more = divmod(num_layers - last, num_stages - 1)
    return (*(each + (stage < more) for stage in range(num_stages - 1)), last)
