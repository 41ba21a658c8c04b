"""What the stages of a model must know of the proposer on the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.links import StageLinks

_NUMBERS = 5  # that say what a layer keeps


@dataclass(frozen=True, slots=True)
class DraftFacts:
    kv_layers: Sequence[LayerKV] = ()
    aux_layers: Sequence[int] = ()  # of the target, whose streams it begins with


def share_facts(links: StageLinks, own: DraftFacts, device: torch.device) -> DraftFacts:
    """own: of the last stage; device: whose tensors the links take -> the same on all"""
    if links.count == 1:
        return own
    sizes = torch.tensor([len(own.kv_layers), len(own.aux_layers)], dtype=torch.int32, device=device)
    each_layer = [
        (layer.num_kv_heads, layer.head_dim, layer.window, int(layer.cross), layer.chunk) for layer in own.kv_layers
    ]
    numbers = [number for layer in each_layer for number in layer] + list(own.aux_layers)
    if links.is_last:
        links.broadcast(sizes)
        links.broadcast(torch.tensor([0, *numbers], dtype=torch.int32, device=device))
        return own
    links.receive_broadcast(sizes)
    num_layers, num_aux = sizes.tolist()
    received = torch.zeros(1 + _NUMBERS * num_layers + num_aux, dtype=torch.int32, device=device)
    links.receive_broadcast(received)
    _, *values = received.tolist()
    links.check()
    each = [values[first : first + _NUMBERS] for first in range(0, _NUMBERS * num_layers, _NUMBERS)]
    layers = [
        LayerKV(heads, dim, window=window, cross=bool(cross), chunk=chunk) for heads, dim, window, cross, chunk in each
    ]
    return DraftFacts(layers, values[_NUMBERS * num_layers :])
