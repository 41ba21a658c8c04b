"""`cadence models`: what can be run. `cadence models MODEL`: what that would become; status 1 where it cannot run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from cadence.config.cli import Parser
from cadence.config.files.implementation import MODEL_IMPLS
from cadence.config.files.transformers_source import installed_version
from cadence.config.reference import find_described
from cadence.entrypoints.cli.models.listing import as_object, as_text
from cadence.entrypoints.cli.models.outlook import Outlook, machine_memory, outlook
from cadence.entrypoints.cli.models.stored import stored_on_hub
from cadence.entrypoints.cli.shared.report import columns

_GIB = 2**30


def run(argv: Sequence[str]) -> int:
    description = "List what can be run; or say what a model would become, without loading it."
    parser = Parser("cadence models", description, positional="[MODEL]")
    parser.add_argument("model", nargs="?", help="alias, folder, .gguf file, or hub id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--model-impl", choices=MODEL_IMPLS, default="auto", help="whose code is to compute it (auto)")
    parser.add_argument("--trust-remote-code", action="store_true", help="count the code that comes with a model")
    parser.add_argument("--revision", default="", help="branch, tag or commit on the hub")
    parser.add_argument("--hf-token", default="", help="hub access token for gated models")
    flags = parser.parse(argv)
    if flags.model is None:
        print(json.dumps(as_object(), indent=2) if flags.json else as_text())
        return 0
    files, on_hub = find_described(flags.model, revision=flags.revision, token=flags.hf_token)
    found = outlook(files, flags.model_impl, flags.trust_remote_code)
    if on_hub and not found.why_not:
        found = dataclasses.replace(found, stored=stored_on_hub(on_hub))
    print(json.dumps(_object(flags.model, found), indent=2) if flags.json else _text(found))
    return 1 if found.why_not else 0


def _object(model: str, found: Outlook) -> dict[str, object]:
    flat = dataclasses.asdict(found) | {"model": model, "memory_bytes": found.memory_bytes, "kv_bytes": found.kv_bytes}
    return {**flat, "runs": not found.why_not}


def _text(found: Outlook) -> str:
    if found.why_not:
        return columns([("architecture", found.architecture), ("runs", f"no: {found.why_not}")])
    lines = [("architecture", found.architecture), ("runs", _code(found))]
    if found.dtype:
        lines.append(("dtype", found.dtype))
    lines.append(("quantization", found.quantization or "none"))
    if found.stored.num_parameters:
        kinds = ", ".join(found.stored.kinds[:4])
        lines.append(("parameters", f"{_short(found.stored.num_parameters)} ({kinds})"))
    if found.stored.num_bytes:
        count = found.stored.num_files
        files = f" in {count} file{'s' if count > 1 else ''}" if count else " on the hub"
        lines.append(("weights", f"{_gib(found.stored.num_bytes)}{files}"))
    else:
        lines.append(("weights", "none here"))
    if found.max_model_len:
        lines.append(("context", f"{found.max_model_len:,} tokens"))
    return columns([*lines, *_cache(found)])


def _code(found: Outlook) -> str:
    ways = {
        "cadence": f"by hand ({found.where})",
        "registered": f"by a class of another package ({found.where})",
        "transformers": f"through transformers' own code ({found.where}, transformers {installed_version()})",
        "remote": f"through code that comes with it ({found.where}), and transformers {installed_version()}",
    }
    return ways[found.code]


def _cache(found: Outlook) -> list[tuple[str, str]]:
    lines = []
    if found.kv_bytes_per_token:
        window = f"; of layers with a window at most {found.window:,}" if found.window else ""
        each = f"{found.kv_bytes_per_token / 1024:,.1f} KiB a token in {found.kv_layers} layers"
        lines.append(("KV cache", f"{each}, {_gib(found.kv_bytes)} of a whole context{window}"))
    if found.state_layers:
        lines.append(("states", f"of one size, in {found.state_layers} layers"))
    if found.stored.num_bytes:
        here = f"of {_gib(machine_memory())} of this machine"
        lines.append(("memory", f"{_gib(found.memory_bytes)} with one request of a whole context, {here}"))
    return lines


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB" if num_bytes >= _GIB / 10 else f"{num_bytes / 2**20:,.1f} MiB"


def _short(count: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)
