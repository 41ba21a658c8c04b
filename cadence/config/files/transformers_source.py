"""What the transformers package knows, read off its sources: it is not imported, which takes seconds and torch.

A missing or unreadable file is as good as a package that is not there. Only literals are read.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cadence.config.files.fields import LENGTHS

PACKAGE = "transformers"
_PAIR = re.compile(r"\(\s*\"([^\"]+)\",\s*\"(\w+)\"\s*\)")
_LANGUAGE_MODELS, _CONFIGS = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "CONFIG_MAPPING_NAMES"
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# What is read of a configuration that leaves it out: the host's half asks for it.
_DEFAULTS = (*LENGTHS, "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
             "head_dim", "sliding_window", "tie_word_embeddings")  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransformersFamily:
    """A family of language models."""

    architecture: str  # "Glm4ForCausalLM"
    model_type: str  # "glm4"
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what a configuration that leaves them out has
    names: Mapping[str, str] = field(default_factory=dict)  # the usual name of a field -> the family's
    why_not: str = ""  # in a sentence after "its": why our attention cannot take the place of its own; "" = it may


def is_installed() -> bool:
    return _folder() is not None


def installed_version() -> str:
    """ "" where there is none"""
    found = re.search(r"^__version__ = \"([^\"]+)\"", _text("__init__.py"), re.MULTILINE)
    return found[1] if found else ""


@cache
def language_models() -> dict[str, str]:
    """Architecture -> model type, of all that generate text."""
    mapped = _mapping("modeling_auto.py", _LANGUAGE_MODELS)
    found: dict[str, str] = {}
    for model_type, architecture in mapped:
        found.setdefault(architecture, model_type)
    return found


def find_family(architecture: str, model_type: str = "") -> TransformersFamily | None:
    """model_type: what a configuration says, where several have one class"""
    known = language_models().get(architecture)
    if known is None:
        return None
    if (model_type, architecture) in _mapping("modeling_auto.py", _LANGUAGE_MODELS):
        known = model_type
    defaults, names = _configuration(known)
    return TransformersFamily(architecture, known, defaults, names, _why_not(architecture, known))


@cache
def _folder() -> Path | None:
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _text(*parts: str) -> str:
    folder = _folder()
    try:
        return "" if folder is None else folder.joinpath(*parts).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@cache
def _mapping(file: str, name: str) -> list[tuple[str, str]]:
    """An OrderedDict of pairs of names, as its file has it."""
    _, found, rest = _text("models", "auto", file).partition(f"\n{name} = OrderedDict(")
    return _PAIR.findall(rest.partition("\n)\n")[0]) if found else []


def _module(model_type: str) -> str:
    """The folder of a family."""
    special = dict(_mapping("configuration_auto.py", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"))
    special |= dict(_mapping("auto_mappings.py", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME"))
    return special.get(model_type, model_type).replace("-", "_")


def _configuration(model_type: str) -> tuple[dict[str, Any], dict[str, str]]:
    """-> (values of the fields of its class, its names for usual ones)"""
    named = dict(_mapping("auto_mappings.py", _CONFIGS) or _mapping("configuration_auto.py", _CONFIGS))
    module = _module(model_type)
    try:
        tree = ast.parse(_text("models", module, f"configuration_{module}.py"))
    except SyntaxError:
        return {}, {}
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    values = dict(_literals(classes.get(named.get(model_type, ""), [])))
    names = values.get("attribute_map")
    names = names if isinstance(names, dict) else {}
    defaults = {usual: values[own] for usual in _DEFAULTS if (own := names.get(usual, usual)) in values}
    return defaults, {usual: own for usual, own in names.items() if usual in _DEFAULTS}


def _literals(body: list[ast.stmt]) -> list[tuple[str, Any]]:
    found = []
    for node in body:
        if not isinstance(node, ast.AnnAssign | ast.Assign) or node.value is None:
            continue
        target, value = node.target if isinstance(node, ast.AnnAssign) else node.targets[0], node.value
        if isinstance(target, ast.Name):
            try:
                found.append((target.id, _value(value)))
            except ValueError:
                continue
    return found


def _value(node: ast.expr) -> Any:
    """Of a literal, or a product of such; ValueError otherwise"""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = _value(node.left), _value(node.right)
        if all(isinstance(factor, int) and 0 < factor < 2**31 for factor in factors):
            return factors[0] * factors[1]
    return ast.literal_eval(node)


def _why_not(architecture: str, model_type: str) -> str:
    module = _module(model_type)
    source = _text("models", module, f"modeling_{module}.py")
    if source and _INTERFACE not in source:
        return "attention is its own, and not to be replaced by ours"
    if source and "position_ids" not in source:
        return "forward takes no positions, so that its texts cannot share one"
    if re.search(r"^    _is_stateful = True", source, re.MULTILINE):
        return "layers keep a state in place of keys"
    return ""
