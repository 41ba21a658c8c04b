"""What can be run, and how."""

from __future__ import annotations

from typing import Any

from cadence import gguf
from cadence.config.files.transformers_source import find_family, installed_version, language_models
from cadence.config.reference import AliasInfo, alias_table
from cadence.core.model.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS, SEEING
from cadence.core.model.model_heads import MODEL_CLASSES
from cadence.core.model.model_registry import ModelRegistry, registered
from cadence.entrypoints.cli.shared.report import columns

_WIDTH = 110


def as_object() -> dict[str, Any]:
    aliases = [{"alias": row.name, "present": row.present, "path": str(row.where)} for row in alias_table()]
    ModelRegistry.get_supported_archs()
    return {
        "aliases": aliases,
        "architectures": sorted(MODEL_CLASSES),
        "by_hand": sorted(ARCHITECTURES),
        "registered": registered(),
        "through_transformers": through_transformers(),
        "transformers": installed_version(),
        "gguf": gguf.architectures(),
    }


def as_text() -> str:
    found = as_object()
    others_of_ours = {*ENCODERS, *ENCODER_DECODERS, *SEEING}
    decoders = [name for name in ARCHITECTURES if name not in others_of_ours]
    version = found["transformers"]
    others = found["through_transformers"]
    none = [] if version else ["not installed: pip install transformers"]
    parts = [
        columns([("alias", "model", "licence", "file"), *(_line(row) for row in alias_table())]),
        "Any folder, .gguf file or hub id (org/name, org/name:file.gguf) works too; `cadence models MODEL` says what\n"
        "it would become. Architectures:",
        _section("by hand, also as ...Model, ...ForSequenceClassification and ...ForTokenClassification", decoders),
        _section("by hand, with an encoder", list(ENCODER_DECODERS)),
        _section("by hand, that see or hear", list(SEEING)),
        _section("by hand, encoders", list(ENCODERS)),
        _section("by classes of other packages", list(found["registered"])),
        _section(f"through transformers {version}, as far as its sources say".replace(" ,", ","), others or none),
        _section("from GGUF files", found["gguf"]),
    ]
    return "\n\n".join(part for part in parts if part)


def through_transformers() -> list[str]:
    """Of families without a file here, those whose attention ours can take the place of."""
    known = (find_family(name) for name in language_models() if name not in MODEL_CLASSES)
    return sorted(family.architecture for family in known if family is not None and not family.why_not)


def _section(title: str, names: list[str]) -> str:
    lines = [""]
    for name in sorted(names):
        if len(lines[-1]) + len(name) > _WIDTH:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else '  '}{name}"
    return "\n".join([f"{title}:", *lines]) if names else ""


def _line(row: AliasInfo) -> tuple[str, str, str, str]:
    where = str(row.where) if row.present else f"{row.where} (fetched on first use)"
    return row.name, row.what, row.licence, where
