"""Whether two machines have the same model, told by little."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cadence.config.reference import ModelFiles

_HEAD = 1 << 20  # bytes of a GGUF file: its config, its tokenizer or the beginning of it


def model_digest(files: ModelFiles) -> str:
    """Of the configuration and of the sizes of the weights, not of the weights themselves."""
    digest = hashlib.sha256()
    if files.gguf is not None:
        parts = [files.gguf] if files.tower is None else [files.gguf, files.tower]
        for part in parts:
            with part.open("rb") as file:
                digest.update(file.read(_HEAD))
        return _with_sizes(digest, parts)
    digest.update((files.directory / "config.json").read_bytes())
    return _with_sizes(digest, sorted(files.directory.glob("*.safetensors")))


def _with_sizes(digest: hashlib._Hash, weights: list[Path]) -> str:
    for path in weights:
        digest.update(path.stat().st_size.to_bytes(8, "little"))
    return digest.hexdigest()
