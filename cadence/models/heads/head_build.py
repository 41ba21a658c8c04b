"""What a head is built with: how its target is, and what its checkpoint holds and therefore does not share with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.core.errors import ConfigError, WeightsError
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model_proposer import DraftVocabulary

FIELD = "speculative_config"  # what a message about a head is about


class HeldTensors(Protocol):
    def names(self) -> Sequence[str]: ...

    def load(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class HeadBuild:
    build: BuildContext
    target: DecoderLM
    held: HeldTensors
    where: str  # the checkpoint, in messages

    @property
    def hidden(self) -> int:
        """Entries of the target's hidden states."""
        return self.target.embed.tokens.weight.cols

    def has(self, *names: str) -> bool:
        """Whether the checkpoint holds a tensor of any of these names."""
        held = set(self.held.names())
        return any(name in held for name in names)

    def check_hidden(self, found: int) -> None:
        if found != self.hidden:
            message = f"{self.where}: its hidden size is {found}, the target's {self.hidden}: a head of another model"
            raise ConfigError(message, FIELD)

    def check_vocabulary(self, found: int) -> None:
        wanted = self.target.vocab_size
        if found < wanted:
            message = f"{self.where}: it knows {found} tokens, the target {wanted}: a head of another model"
            raise ConfigError(message, FIELD)

    def all_ids(self) -> DraftVocabulary:
        return DraftVocabulary.leading(self.target.vocab_size, self.build.device)

    def mapped_ids(self, name: str, size: int, *, offsets: bool) -> DraftVocabulary:
        """A vocabulary of `size` tokens: tensor `name` has the target's id of each, or by how much it differs."""
        ids = self.held.load(name)
        if ids.shape != (size,) or size == 0 or ids.dtype.is_floating_point:
            shape = f"{list(ids.shape)} of {str(ids.dtype).removeprefix('torch.')}"
            raise WeightsError(f"{self.where}: {name} maps {size} tokens and must be [{size}] of int64, found {shape}")
        ids = ids.long() + torch.arange(size) if offsets else ids.long()
        if ids.min() < 0 or ids.max() >= self.target.vocab_size:
            found = f"ids from {ids.min()} to {ids.max()}, the target's are 0 to {self.target.vocab_size - 1}"
            raise WeightsError(f"{self.where}: {name} leads to {found}: a head of another model")
        return DraftVocabulary(ids.to(self.build.device), same=False)
