"""A model's own description of itself: `config.json` and `generation_config.json`, or the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cadence import gguf
from cadence.config.files.fields import check_config, check_generation, check_layers, wrong
from cadence.config.files.implementation import OURS, Implementation
from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.config.files.section_defaults import with_section_defaults
from cadence.config.files.sentence_transformers import NO_MODULES, SentenceModules, read_modules
from cadence.config.files.tower_weights import MAY_LACK, lacks_tower
from cadence.config.reference import ModelFiles
from cadence.core.errors import ModelFileError
from cadence.core.model.model_heads import MODEL_CLASSES, ModelClass, ModelHead
from cadence.core.model.model_registry import is_known

_MOST_NAME = 256  # characters


@dataclass(frozen=True, slots=True)
class HFConfig:
    """Keys and values as Hugging Face writes them, rope settings in both spellings whichever the file uses.

    Older files: `rope_theta`, `rope_scaling` (None when plain), `rope_local_base_freq`, `partial_rotary_factor`.
    Newer ones: `rope_parameters`, flat, or by kind of layer where there is a local base. The two always agree.
    """

    architecture: str  # "LlamaForCausalLM"
    raw: dict[str, Any]
    name: str
    source: Path  # the file that was read, for messages
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json, or an alias's; {} = none
    eos_token_ids: tuple[int, ...] = ()  # of config and generation config together
    head: ModelHead = ModelHead.LOGITS  # what it is served with: its architecture's, or what `convert` asks for
    sentence: SentenceModules = NO_MODULES  # what sentence-transformers' files say
    as_written: dict[str, Any] = field(default_factory=dict)  # of the file, and `hf_overrides`: in its own spelling
    implementation: Implementation = OURS  # whose code computes it

    @property
    def family(self) -> str:
        """The class that is built; of an architecture that is not supported, its name."""
        return known_class(self.architecture).family

    def __getitem__(self, key: str) -> Any:
        if key not in self.raw:
            raise ModelFileError(f"{self.source}: missing {key!r}", field=key)
        return self.raw[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.raw.get(key, default)


def load_hf_config(files: ModelFiles, overrides: Mapping[str, Any] = {}) -> HFConfig:
    """`overrides` are the user's `hf_overrides`: they win over the file, object by object, key by key."""
    if files.gguf is not None:
        raw = gguf.read_config(files.gguf, files.tower)
        hf = make_hf_config(files.name, files.gguf, raw, dict(files.generation), overrides)
        pooling = hf.get(gguf.POOLING_FIELD, "")  # its embeddings are of length 1, as llama.cpp gives them
        return replace(hf, sentence=SentenceModules(pooling=pooling, normalize=True)) if pooling else hf
    path = files.directory / "config.json"
    hf = make_hf_config(files.name, path, _read(path), read_generation(files.directory), overrides)
    if hf.architecture in MAY_LACK and lacks_tower(files.directory):
        hf = replace(hf, raw=hf.raw | {"vision_config": None})
    return replace(hf, sentence=read_modules(files.directory))


def known_class(architecture: str) -> ModelClass:
    return MODEL_CLASSES[architecture] if is_known(architecture) else ModelClass(architecture, ModelHead.OWN)


def read_generation(directory: Path) -> dict[str, Any]:
    """{} when there is no such file."""
    path = directory / "generation_config.json"
    return check_generation(_read(path), path) if path.exists() else {}


def make_hf_config(
    name: str, source: Path, raw: dict[str, Any], generation: dict[str, Any], overrides: Mapping[str, Any] = {}
) -> HFConfig:
    as_written = _merge(raw, overrides)
    architecture = _architecture(as_written.get("architectures"), source)
    if is_known(architecture):  # the fields of others may mean anything
        raw, overrides = check_config(raw, source), check_config(overrides, Path("hf_overrides"))
        raw = with_section_defaults(raw, architecture, source)
    raw = _fold_rope(_merge(_unfold_rope(_with_text_section(raw)), _unfold_rope(dict(overrides))))
    check_layers(raw, source)
    eos = dict.fromkeys(_token_ids(raw, "eos_token_id") + _token_ids(generation, "eos_token_id"))
    return HFConfig(
        architecture=architecture,
        raw=raw,
        name=name,
        source=source,
        generation=generation,
        eos_token_ids=tuple(eos),
        head=known_class(architecture).head,
        as_written=as_written,
    )


def _architecture(names: Any, source: Path) -> str:
    if not isinstance(names, list) or not names or not isinstance(names[0], str) or len(names[0]) > _MOST_NAME:
        raise wrong(source, "architectures", "a list that names the model class", names)
    return names[0]


def _read(path: Path) -> dict[str, Any]:
    return read_object(path, MOST_CONFIG_BYTES, lambda message: ModelFileError(message, "model"))


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`; where both hold an object, key by key (but one kind of rope replaces another whole)."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        deep = isinstance(old, dict) and isinstance(value, Mapping) and key != "rope_scaling"
        merged[key] = _merge(old or {}, value) if deep else value
    return merged


def _with_text_section(raw: dict[str, Any]) -> dict[str, Any]:
    """Models with several towers describe the language model in `text_config`, and heads that draft for another model
    their layer in `transformer_layer_config`: what is said only there counts."""
    for name in ("text_config", "transformer_layer_config"):
        section = raw.get(name)
        raw = {**section, **raw} if isinstance(section, dict) else raw
    return raw


def _unfold_rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The older spelling alone."""
    raw = dict(raw)
    parameters = raw.pop("rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        return raw
    if all(isinstance(value, dict) for value in parameters.values()):  # one set per kind of layer
        local = parameters.get("sliding_attention", {})
        if "rope_theta" in local:
            raw["rope_local_base_freq"] = local["rope_theta"]
        parameters = parameters.get("full_attention", local)
    scaling = {key: value for key, value in parameters.items() if key not in ("rope_theta", "partial_rotary_factor")}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in parameters:
            raw[key] = parameters[key]
    if "rope_theta" in raw or scaling:
        plain = scaling.get("rope_type", "default") == "default" and "mrope_section" not in scaling
        raw["rope_scaling"] = None if plain else scaling
    return raw


def _fold_rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Adds the newer spelling of what the older one says."""
    plain: dict[str, Any] = {key: raw[key] for key in ("rope_theta", "partial_rotary_factor") if key in raw}
    scaling = raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):  # of an architecture that is not ours
        return raw
    parameters = {"rope_type": scaling.get("type", "default"), **scaling, **plain}
    if "rope_local_base_freq" in raw:
        local = {"rope_type": "default", "rope_theta": raw["rope_local_base_freq"]}
        return raw | {"rope_parameters": {"full_attention": parameters, "sliding_attention": local}}
    return raw | {"rope_parameters": parameters} if plain or scaling else raw


def _token_ids(raw: Mapping[str, Any], key: str) -> list[int]:
    value = raw.get(key)
    ids = value if isinstance(value, list) else [value]
    return [token_id for token_id in ids if isinstance(token_id, int) and token_id >= 0]
