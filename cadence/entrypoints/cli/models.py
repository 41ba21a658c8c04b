"""`cadence models`: the aliases, where their files are, and which architectures can be loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cadence.config.cli import Parser
from cadence.config.reference import AliasInfo, alias_table
from cadence.core.architectures import ARCHITECTURES
from cadence.core.model_heads import MODEL_CLASSES
from cadence.entrypoints.cli.shared.report import columns


def run(argv: Sequence[str]) -> int:
    parser = Parser("cadence models", "List model aliases, where their files are, and the architectures known.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    flags = parser.parse(argv)
    if flags.json:
        aliases = [{"alias": row.name, "present": row.present, "path": str(row.where)} for row in alias_table()]
        print(json.dumps({"aliases": aliases, "architectures": sorted(MODEL_CLASSES)}, indent=2))
        return 0
    print(columns([("alias", "model", "licence", "file"), *(_line(row) for row in alias_table())]))
    print("\nAny folder, .gguf file or hub id (org/name, org/name:file.gguf) works too, with one of the architectures")
    print("  " + "\n  ".join(sorted(ARCHITECTURES)))
    print("and the same decoders as ...Model, ...ForSequenceClassification, ...ForTokenClassification")
    return 0


def _line(row: AliasInfo) -> tuple[str, str, str, str]:
    where = str(row.where) if row.present else f"{row.where} (fetched on first use)"
    return row.name, row.what, row.licence, where
