"""What a model's files say about the tokens that are not text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The named special tokens. A token the model does not have is "" and its id -1.

    `extra` holds what else the files say; the keys that mean something here:
      "additional_special_tokens": list[str], special tokens without a role of their own;
      "eos_token_ids": list[int], every id that ends a generation (generation_config.json may name several).
    """

    bos_token: str = ""
    eos_token: str = ""
    pad_token: str = ""
    unk_token: str = ""
    bos_id: int = -1
    eos_id: int = -1
    add_bos: bool = False  # encode(..., add_special_tokens=True) puts bos first
    add_eos: bool = False  # ... and eos last
    extra: Mapping[str, object] = field(default_factory=dict)

    def named(self) -> dict[str, str]:
        """The tokens a chat template may use by name; absent ones are left out, as templates test for them."""
        pairs = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
        }
        return {name: token for name, token in pairs.items() if token}

    def additional(self) -> list[str]:
        tokens = self.extra.get("additional_special_tokens", [])
        return [str(token) for token in tokens] if isinstance(tokens, list | tuple) else []

    def eos_ids(self) -> frozenset[int]:
        """Every token id at which a generation ends."""
        listed = self.extra.get("eos_token_ids", [])
        ids = {int(token_id) for token_id in listed} if isinstance(listed, list | tuple) else set()
        return frozenset(ids | {self.eos_id} - {-1})
