"""Tables that are made of weights once these are loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from torch import nn

_Model = TypeVar("_Model", bound=nn.Module)


class DerivedTable(nn.Module, ABC):
    @abstractmethod
    def derive(self) -> None:
        """Fills its table, in place."""


def derived(model: _Model) -> _Model:
    """Of a model whose weights are loaded -> itself"""
    for module in model.modules():
        if isinstance(module, DerivedTable):
            module.derive()
    return model
