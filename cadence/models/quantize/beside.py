"""What lies beside weights in a checkpoint: configuration, tokenizer, licence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from cadence import gguf
from cadence.config.files.json_file import MOST_TABLE_BYTES, read_object
from cadence.config.reference import ModelFiles
from cadence.core.errors import ModelFileError

_COPIED = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "NOTICE*")
_OUR_OWN = ("config.json",)
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
_NOT_SAID = ("partial_rotary_factor",)  # 1.0 where transformers has no such field


def base_config(files: ModelFiles) -> dict[str, Any]:
    """config.json as the source has it, or as it would be beside a GGUF file's tensors."""
    if files.gguf is None:
        return read_object(files.directory / "config.json", MOST_TABLE_BYTES, ModelFileError)
    config = gguf.read_config(files.gguf)
    return {name: value for name, value in config.items() if name not in _NOT_SAID or value != 1.0}


def copy_beside(files: ModelFiles, folder: Path) -> None:
    if files.gguf is not None:
        _write_tokenizer(files.gguf, folder)
        if files.generation:
            _write(folder / "generation_config.json", {"do_sample": True, **files.generation})
        return
    for path in sorted({path for pattern in _COPIED for path in files.directory.glob(pattern)}):
        if path.is_file() and path.name not in _OUR_OWN and not path.name.endswith(".index.json"):
            shutil.copy(path, folder / path.name)


def _write_tokenizer(path: Path, folder: Path) -> None:
    found = gguf.read_tokenizer(path)
    special = found.special
    if special["add_bos"]:
        _begin_with_bos(found.backend, special)
    found.backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{role: special[role] for role in _ROLES if special[role]},
        "add_bos_token": special["add_bos"],
        "add_eos_token": special["add_eos"],
        "clean_up_tokenization_spaces": False,
    }
    if found.max_length is not None:
        config["model_max_length"] = found.max_length
    if "default" in found.templates:
        config["chat_template"] = found.templates["default"]
    _write(folder / "tokenizer_config.json", config)


def _begin_with_bos(backend: Any, special: dict[str, Any]) -> None:
    from tokenizers.processors import TemplateProcessing

    bos = special["bos_token"]
    backend.post_processor = TemplateProcessing(
        single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, special["bos_id"])]
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
